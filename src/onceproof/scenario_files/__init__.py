"""Scenario files: read, checked, explained, drafted, and their schema. What a file says becomes a `Scenario`."""
