"""Crash: SIGKILL. One file per target; `kind` registers the fault."""
