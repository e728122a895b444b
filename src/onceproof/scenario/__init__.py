"""The scenario as a value: what to run, what to break, and what to expect."""
