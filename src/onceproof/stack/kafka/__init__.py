"""Kafka as a service of the run: brokers, their settings, and the settings of the harness's clients."""
