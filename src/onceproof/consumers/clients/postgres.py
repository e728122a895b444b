"""A consumer of a Kafka group whose effect is a row in Postgres, committed by itself or together with the consumer's position.

Together means that the group's offsets are not used: the position is in a table, written in the transaction of the row, and a
restarted consumer continues from there (J. Kreps et al., Kafka's documentation of `seek`: offsets outside Kafka).
"""

from __future__ import annotations

import os

import psycopg
from psycopg import sql

from onceproof.consumers.clients.contract import Client, EffectRefused, Taken
from onceproof.consumers.clients.kafka_group import KafkaGroup, dead_letters

_POSITIONS = sql.Identifier("consumer_positions")
_READ = sql.SQL(
    "SELECT next_offset FROM {} WHERE consumer_group = %s AND topic = %s AND partition = %s FOR UPDATE"
).format(_POSITIONS)
_BEGIN = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING").format(_POSITIONS)
_MOVE = sql.SQL("UPDATE {} SET next_offset = %s WHERE consumer_group = %s AND topic = %s AND partition = %s").format(
    _POSITIONS
)


class RowEffect:
    """The fields of a message become the columns of the same name; the table that `prepare.sql` created decides their types.

    A unique key of that table makes the effect idempotent: a row that exists already is not written again. A row that another
    constraint or a type of the table does not allow is refused.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        table = sql.Identifier(os.environ["ONCEPROOF_TABLE"])
        self._insert = sql.SQL(
            "INSERT INTO {0} SELECT * FROM json_populate_record(NULL::{0}, %s::json) ON CONFLICT DO NOTHING"
        ).format(table)

    def write(self, taken: Taken) -> None:
        try:
            self._connection.execute(self._insert, [taken.body.decode()])
        except (psycopg.IntegrityError, psycopg.DataError) as refused:  # no second try can succeed
            raise EffectRefused(str(refused).splitlines()[0]) from refused


class PositionsInPostgres(KafkaGroup):
    """Takes like any member of the group, but starts at the position in its own table."""

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
        """The next offset of a partition, locked until the transaction ends: no other consumer can process this message."""
        self._connection.execute(_BEGIN, [self._group, *place])
        row = self._connection.execute(_READ, [self._group, *place]).fetchone()
        assert row is not None, "the statement above inserted it"
        return int(row[0])

    def acknowledge(self, taken: Taken) -> None:
        topic, partition, offset = taken.tag
        self._connection.execute(_MOVE, [offset + 1, self._group, topic, partition])


class RowEffectOnce:
    """`RowEffect` in a transaction that begins with the lock on the position, and refuses a message that is already done."""

    def __init__(self, source: PositionsInPostgres, rows: RowEffect) -> None:
        self._source = source
        self._rows = rows

    def write(self, taken: Taken) -> None:
        topic, partition, offset = taken.tag
        found = self._source.locked((topic, partition))
        if found != offset:
            raise RuntimeError(
                f"{topic}/{partition}: the stored position is {found} and this message's offset {offset}: another consumer wrote it"
            )
        self._rows.write(taken)


def open_rows() -> RowEffect:
    """Each row is committed by itself."""
    return RowEffect(psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True))


def open_client(acknowledge: str) -> Client:
    if acknowledge != "with-effect":
        return Client(KafkaGroup(), open_rows(), dead_letters=dead_letters())
    connection = psycopg.connect(os.environ["ONCEPROOF_POSTGRES"])
    source = PositionsInPostgres(connection)
    return Client(source, RowEffectOnce(source, RowEffect(connection)), connection.commit)
