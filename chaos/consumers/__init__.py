"""Fault kinds of consumers, one file each. `onceproof.consumers.faults` defines what such a fault is."""
