"""Runs the user's code that decodes values or says what outputs must hold: once at the end of a run. Stores its results."""
