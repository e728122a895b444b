"""Postgres tables as outputs."""
