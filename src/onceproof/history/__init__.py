"""The history of a run: observations as Parquet tables in the run directory, without conclusions."""
