"""The contract of a fault, the controller that injects faults, and code that several kinds share; the kinds are in `onceproof.chaos`."""
