"""The real services of a run: Kafka, Postgres, Toxiproxy. Other packages use them through `onceproof.stack.api`."""
