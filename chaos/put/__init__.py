"""Faults of the object store that holds the checkpoint: what happens to the PUT of a batch's entry in the commit log."""
