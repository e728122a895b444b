"""`onceproof qualify`: every point x fault kind on a job that somebody else wrote, within a time budget."""
