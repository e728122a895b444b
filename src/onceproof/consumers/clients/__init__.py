"""The consumer's side of the brokers: where its messages come from and where its effects go, one file each."""
