"""Crash: SIGKILL of a process. One file per target."""
