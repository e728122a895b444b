"""The login and TLS of the Kafka cluster, as the platform configures them: in a client's properties file."""

import os
from pathlib import Path


def options() -> dict[str, str]:
    """Options of Spark's Kafka source and sink; none if KAFKA_PROPERTIES names no file."""
    if not (path := os.environ.get("KAFKA_PROPERTIES")):
        return {}
    with Path(path).open(encoding="ascii") as file:
        settings = dict(line.rstrip("\n").split("=", 1) for line in file)
    return {f"kafka.{name}": value.encode().decode("unicode_escape") for name, value in settings.items()}
