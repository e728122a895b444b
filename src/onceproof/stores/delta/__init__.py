"""Delta tables as outputs."""
