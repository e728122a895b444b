"""The contract of a fault, the controller that injects faults, and code shared by the kinds, which are in `onceproof.chaos`."""
