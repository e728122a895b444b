"""The external provider: Kafka and Postgres that somebody else operates, described in `onceproof.toml`."""
