"""Reports, one renderer per output format."""
