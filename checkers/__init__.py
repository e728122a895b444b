"""Checkers, one file per anomaly. `onceproof.judge.checker` defines what a checker is."""
