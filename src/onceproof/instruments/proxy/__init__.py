"""The protocol proxy: reads the frames of Kafka, Postgres and AMQP, and drops, delays or holds those that a rule names."""
