"""Output systems, one folder each: how to read one back, what its commits are, and how messages name it."""
