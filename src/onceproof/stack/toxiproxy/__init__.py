"""Toxiproxy as a service of the run, and the protocol proxy in front of it."""
