"""The real services of a run: Kafka, Postgres, Toxiproxy. `onceproof.stack.api` says what the rest of onceproof may ask of them."""
