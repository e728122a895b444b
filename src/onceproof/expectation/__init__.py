"""What the outputs must hold where code has to say it: asked once at the end of a run, and stored with the history."""
