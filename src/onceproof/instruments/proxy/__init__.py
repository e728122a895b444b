"""The protocol proxy: reads the frames of Kafka, Postgres and AMQP connections, and drops, delays or holds those a rule names."""
