"""Scenarios: one YAML file says what to run, what to break, what to expect."""
