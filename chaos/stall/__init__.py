"""Stall: SIGSTOP of a process, then SIGCONT. `kind` registers the fault."""
