"""The command `onceproof watch`."""
