"""Runs a stored schedule again, and finds the smallest that still shows the finding: `replay` and `shrink`."""
