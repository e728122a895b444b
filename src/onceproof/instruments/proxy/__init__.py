"""The protocol proxy: reads the frames of Kafka and Postgres on their way, and loses, delays or holds the one that a rule names."""
