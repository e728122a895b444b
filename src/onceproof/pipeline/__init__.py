"""The system under test and its supervision: the job, its settings, its input, and what Spark logs about it."""
