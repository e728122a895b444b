"""The answer to a COMMIT in MariaDB is lost: by a proxy of bytes, which knows nothing of MariaDB's protocol.

What shows that exactly the answer to the COMMIT was lost: the writer got the answers to its INSERTs, the COMMIT is the only request
that it sent since the proxy drops answers, it got an error instead of an answer, and another session, past the proxy, reads its
rows. No run does this: no fault of a scenario places it (docs/stores.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from onceproof.base.waiting import wait_until
from onceproof.stack.api import Lost
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.dropping import drop_packets
from onceproof.stack.toxiproxy.server import ToxiproxyProxy, ToxiproxyServer

from .mariadb.server import MariaDb, mariadb

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

ORDERS = [(number, f"customer {number % 7}") for number in range(200)]
BATCH = 4
_ANSWER_S = 2
"""How long a writer waits for an answer. Without such a limit it would wait for ever: nothing closes its connection."""

BeforeCommit = Callable[[], None]
Write = Callable[[pymysql.connections.Connection, BeforeCommit], None]


@pytest.fixture(scope="module")
def database() -> Iterator[MariaDb]:
    with mariadb() as found:
        yield found


@pytest.fixture
def proxy(database: MariaDb, tmp_path: Path) -> Iterator[ToxiproxyProxy]:
    program = components.ensure(spark=False).toxiproxy_server
    with Owner() as owner:
        api, listen = lease(owner, 2)
        server = ToxiproxyServer.start(owner, program, tmp_path / "toxiproxy.log", api)
        yield server.create("mariadb", listen, database.port)


@pytest.fixture(autouse=True)
def tables(database: MariaDb) -> None:
    database.execute(
        "CREATE OR REPLACE TABLE booked (order_id BIGINT NOT NULL, customer VARCHAR(20) NOT NULL)",
        "CREATE OR REPLACE TABLE progress (batch BIGINT NOT NULL)",
        "INSERT INTO progress VALUES (0)",
    )


def append(connection: pymysql.connections.Connection, before_commit: BeforeCommit) -> None:
    """A batch, inserted and committed. Nothing records that."""
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO booked VALUES (%s, %s)", ORDERS)
    before_commit()
    connection.commit()


def append_once(connection: pymysql.connections.Connection, before_commit: BeforeCommit) -> None:
    """The remedy: the same transaction records the batch's number, and a recorded batch is not written again."""
    with connection.cursor() as cursor:
        if cursor.execute("UPDATE progress SET batch = %s WHERE batch < %s", (BATCH, BATCH)):
            cursor.executemany("INSERT INTO booked VALUES (%s, %s)", ORDERS)
    before_commit()
    connection.commit()


def with_a_lost_commit(write: Write, database: MariaDb, proxy: ToxiproxyProxy, lost: Lost) -> bool:
    """Write the batch; lose the COMMIT or its answer; write it again, as a pipeline does that replays its batch.

    Returns whether the first attempt's transaction was committed.
    """

    def connect() -> pymysql.connections.Connection:
        host, _, port = proxy.listen.rpartition(":")
        return pymysql.connect(
            host=host,
            port=int(port),
            user="booker",
            password=database.password,
            database="shop",
            read_timeout=_ANSWER_S,
        )

    def rows() -> int:
        return int(database.execute("SELECT count(*) FROM booked")[0][0])

    with closing(connect()) as first, pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        write(first, lambda: drop_packets(proxy, lost))
    applied = rows() == len(ORDERS)
    assert applied or rows() == 0, "a transaction is written as a whole, or not at all"
    proxy.heal()
    wait_until(
        "MariaDB to end the sessions of the first attempt",
        lambda: len(database.execute("SHOW PROCESSLIST")) == 1,
        deadline_s=30,
    )
    with closing(connect()) as second:
        write(second, lambda: None)
    return applied


def test_a_lost_answer_makes_an_append_write_its_batch_twice(database: MariaDb, proxy: ToxiproxyProxy) -> None:
    assert with_a_lost_commit(append, database, proxy, "from-it")
    counts = database.execute("SELECT count(*), count(DISTINCT order_id) FROM booked")
    assert counts == [(2 * len(ORDERS), len(ORDERS))]


def test_a_batch_number_in_the_same_transaction_holds(database: MariaDb, proxy: ToxiproxyProxy) -> None:
    assert with_a_lost_commit(append_once, database, proxy, "from-it")
    assert sorted(database.execute("SELECT * FROM booked")) == ORDERS


@pytest.mark.parametrize("write", [append, append_once])
def test_a_lost_request_is_not_applied_and_harms_neither(
    write: Write, database: MariaDb, proxy: ToxiproxyProxy
) -> None:
    """The control: the replay alone duplicates nothing, only a commit that was applied before it does."""
    assert not with_a_lost_commit(write, database, proxy, "to-it")
    assert sorted(database.execute("SELECT * FROM booked")) == ORDERS
