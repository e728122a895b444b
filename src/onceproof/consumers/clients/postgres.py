"""A consumer of a Kafka group whose effect is a row in Postgres: committed by itself, or together with its position.

Together means that the group's offsets count for nothing: how far it is stands in a table, in the transaction of the row, and a
consumer that comes back begins there (J. Kreps et al., Kafka's documentation of `seek`: offsets outside Kafka).
"""

from __future__ import annotations

import os

import psycopg
from psycopg import sql

from onceproof.consumers.clients.contract import Client, Taken
from onceproof.consumers.clients.kafka_group import KafkaGroup

_POSITIONS = sql.Identifier("consumer_positions")
_READ = sql.SQL(
    "SELECT next_offset FROM {} WHERE consumer_group = %s AND topic = %s AND partition = %s FOR UPDATE"
).format(_POSITIONS)
_BEGIN = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING").format(_POSITIONS)
_MOVE = sql.SQL("UPDATE {} SET next_offset = %s WHERE consumer_group = %s AND topic = %s AND partition = %s").format(
    _POSITIONS
)


class Rows:
    """The fields of a message become the columns of the same name. What `prepare.sql` made decides their types.

    It decides too whether a row may be there once only: where a unique key has it already, nothing is written (an idempotent effect).
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        table = sql.Identifier(os.environ["ONCEPROOF_TABLE"])
        self._insert = sql.SQL(
            "INSERT INTO {0} SELECT * FROM json_populate_record(NULL::{0}, %s::json) ON CONFLICT DO NOTHING"
        ).format(table)

    def write(self, taken: Taken) -> None:
        self._connection.execute(self._insert, [taken.body.decode()])


class PositionsInPostgres(KafkaGroup):
    """Takes as any member of the group, from where its own table says."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._group = os.environ["ONCEPROOF_GROUP"]

    def _position(self, place: tuple[str, int]) -> int:
        if place not in self._next:
            self._next[place] = self.locked(place)
            self._connection.commit()
        return self._next[place]

    def locked(self, place: tuple[str, int]) -> int:
        """The next offset of a partition, held until the transaction ends: nobody else can be at this message."""
        self._connection.execute(_BEGIN, [self._group, *place])
        row = self._connection.execute(_READ, [self._group, *place]).fetchone()
        assert row is not None, "it was made a line above"
        return int(row[0])

    def acknowledge(self, taken: Taken) -> None:
        topic, partition, offset = taken.tag
        self._connection.execute(_MOVE, [offset + 1, self._group, topic, partition])


class RowsOnce:
    """`Rows` in a transaction that begins with the lock on the position, and refuses a message that is done."""

    def __init__(self, source: PositionsInPostgres, rows: Rows) -> None:
        self._source = source
        self._rows = rows

    def write(self, taken: Taken) -> None:
        topic, partition, offset = taken.tag
        found = self._source.locked((topic, partition))
        if found != offset:
            raise RuntimeError(
                f"{topic}/{partition}: the next offset is {found}, and this is {offset}: somebody else was here"
            )
        self._rows.write(taken)


def open_rows() -> Rows:
    """Each row committed by itself."""
    return Rows(psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True))


def open_client(acknowledge: str) -> Client:
    if acknowledge != "with-effect":
        return Client(KafkaGroup(), open_rows())
    connection = psycopg.connect(os.environ["ONCEPROOF_POSTGRES"])
    source = PositionsInPostgres(connection)
    return Client(source, RowsOnce(source, Rows(connection)), connection.commit)
