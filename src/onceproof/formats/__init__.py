"""Formats of values with a schema: Avro, Protobuf, JSON Schema, and Debezium's envelopes. The libraries are imported when used."""
