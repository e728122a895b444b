"""The processes of a run: each is owned, found by its session, and gone when the run ends."""
