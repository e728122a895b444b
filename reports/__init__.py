"""Reports, one renderer an output form."""
