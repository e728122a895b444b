"""Synthetic runs of a correct pipeline, and ways to break one so that an anomaly occurs."""
