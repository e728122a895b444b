"""Kafka as a service of the run: brokers, their settings, and the harness's own clients."""
