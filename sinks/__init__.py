"""Effectively-once sinks that a PySpark job can import."""
