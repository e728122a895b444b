"""Stall: SIGSTOP of a process, then SIGCONT. One file per target."""
