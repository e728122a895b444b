"""A consumer's own end: where its messages come from and where its effects go, one file each."""
