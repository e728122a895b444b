"""What a fault is, and what kinds of faults share. The kinds themselves are in `onceproof.chaos`."""
