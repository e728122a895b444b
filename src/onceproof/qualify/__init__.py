"""`onceproof qualify`: tries every point x fault kind on a user's job, within a time budget."""
