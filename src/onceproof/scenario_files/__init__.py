"""Scenario files: reading, merging and checking one, its JSON Schema, and drafting a first one. A valid file becomes a `Scenario`."""
