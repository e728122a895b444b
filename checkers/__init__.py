"""Checkers, one file an anomaly. What a checker is stands in `onceproof.judge.checker`."""
