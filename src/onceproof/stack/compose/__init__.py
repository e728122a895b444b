"""Kafka, Postgres and Spark in containers of this machine: as an external stack, plus control of the containers."""
