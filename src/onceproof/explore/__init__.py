"""Runs a stored schedule again, and finds the smallest one that still shows the finding: `replay` and `shrink`."""
