"""Evidence that a fault hit: the state of services and outputs, read without going through a proxy."""
