"""Fault kinds, one file each. What a fault is stands in `onceproof.faults.contract`."""
