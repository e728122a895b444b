"""Judges stored runs: from history and oracle to findings, from findings and claim to a verdict. Needs no live service."""
