"""Folders of files that Spark writes, as outputs."""
