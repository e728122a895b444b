"""Sinks that write from Spark's tasks, and streaming formats (`writeStream.format`) with them."""
