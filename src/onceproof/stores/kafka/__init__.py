"""Kafka topics as outputs, and as inputs."""
