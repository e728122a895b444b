"""The processes of a run: an owner starts each, finds it by its session, and ends it with the run."""
