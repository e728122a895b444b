"""Stall: SIGSTOP, then SIGCONT. `kind` registers the fault."""
