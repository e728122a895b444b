"""The history of a run: what was observed, as Parquet tables in the run directory, and nothing that was concluded."""
