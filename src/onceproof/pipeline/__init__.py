"""The system under test and its supervision: the job, the settings that it gets, its input, and what Spark says of it."""
