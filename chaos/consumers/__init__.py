"""Fault kinds of consumers, one file each. What such a fault is stands in `onceproof.consumers.faults`."""
