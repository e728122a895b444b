"""The external provider: Kafka and Postgres that you operate elsewhere, described in `onceproof.toml`."""
