"""Fault kinds, one file each; the contract that they implement is in `onceproof.faults.contract`."""
