"""Effectively-once sinks that a PySpark job can import.

They are in two distributions: as `onceproof.sinks` in the harness, and alone as `onceproof_sinks` in onceproof-sinks.
"""

__version__ = "0.1.0"
"""Of both distributions."""
