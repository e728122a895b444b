"""What proves that a fault hit: what services and outputs hold, asked past every proxy."""
