"""Output systems: one folder each, which knows how to read one back, what a commit of it is, and what it is called."""
