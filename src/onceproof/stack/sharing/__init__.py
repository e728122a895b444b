"""One stack for several executions, one after the other: lent, cleaned, proved to be clean, or replaced."""
