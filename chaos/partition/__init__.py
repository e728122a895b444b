"""Partition: a service is cut off from others by the network, and runs on. One file per target."""
