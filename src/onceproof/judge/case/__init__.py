"""A stored run opened for judging: a database with its tables, and the input as the oracle sees it."""
