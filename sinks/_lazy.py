"""The clients of Postgres and Kafka, each loaded when it is first used.

They take most of the time that an import of the sinks would take: a job does not pay for the client that it does not use, nor for
any before it makes a sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["confluent_kafka", "kafka_admin", "psycopg", "sql"]

if TYPE_CHECKING:
    import confluent_kafka
    import psycopg
    from confluent_kafka import admin as kafka_admin
    from psycopg import sql
else:
    from importlib import import_module

    class _Module:
        """Stands for the module ``name``, which must be installed only where an attribute of it is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

        def __reduce__(self) -> tuple[type[_Module], tuple[str]]:
            """By name: a job may pickle the sinks' functions by value, for executors without the package."""
            return _Module, (self._name,)

    confluent_kafka = _Module("confluent_kafka")
    kafka_admin = _Module("confluent_kafka.admin")
    psycopg = _Module("psycopg")
    sql = _Module("psycopg.sql")
