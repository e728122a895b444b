"""The plugin for pytest: scenario files as tests, and the fixture ``onceproof``."""
