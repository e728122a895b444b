"""Eight jobs as people write them, and what it takes to test each: a command for `init`, and a few edited lines."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shape:
    """One job. ``edits``: text of the drafted scenario -> the text that its owner replaces it with."""

    job: str
    samples: tuple[str, ...]
    init: tuple[str, ...]
    edits: dict[str, str]
    schema: str = ""
    verdict: str = "violated"
    anomalies: tuple[str, ...] = ("duplicate",)

    def edited(self, draft: str) -> str:
        for before, after in self.edits.items():
            assert draft.count(before) == 1, (before, draft)
            draft = draft.replace(before, after)
        return draft


def edited_lines(draft: str, scenario: str) -> int:
    """Lines that were added, changed or removed by hand; comments and blank lines do not count."""
    before, after = (
        [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
        for text in (draft, scenario)
    )
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal")


_IDENTITY = "  kind: identity\n  columns:\n"
_WHY = "  # its primary key is not that of the records, so it may hold a row for several of them"
_UNTIL = "  # remove this when the oracle gives the other columns, too"

SHAPES = {
    "jdbc-append": Shape(
        job="orders_to_warehouse.py",
        samples=("orders",),
        init=(
            *("--topic=orders", "--sample=orders.jsonl", "--table=orders_raw", "--", "PGHOST=db", "PGPORT=5432"),
            *("PGDATABASE=shop", "PGUSER=etl", "PGPASSWORD=hunter2", "KAFKA_BOOTSTRAP_SERVERS=broker:9092"),
            *("python", "orders_to_warehouse.py", "--checkpoint=/data/checkpoints/orders"),
        ),
        edits={
            'orders.jsonl", form: values}': 'orders.jsonl", form: values, key: customer}',
            f"{_IDENTITY}    orders_raw_table: {{order_id: order_id}}\n": """\
  kind: sql
  queries:
    orders_raw_table: SELECT order_id, customer, item, quantity, price::DECIMAL(10,2) AS price, _partition, _offset, _key FROM orders
""",
        },
    ),
    "schema-check": Shape(
        job="meter_readings.py",
        samples=("readings",),
        schema="""\
CREATE TABLE readings (reading_id bigint PRIMARY KEY, meter text, watt_hours bigint);
CREATE TABLE bad_readings ("partition" int, "offset" bigint, body text, PRIMARY KEY ("partition", "offset"));
""",
        init=(
            *("--topic=readings", "--sample=readings.jsonl", "--table=readings", "--table=bad_readings"),
            *("--schema=schema.sql", "--", "python", "meter_readings.py", "--brokers=broker:9092"),
            *("--dsn=postgresql://etl@db/meters", "--checkpoint-dir=/data/checkpoints/readings"),
        ),
        edits={
            'readings.jsonl", form: values}': 'readings.jsonl", form: values, key: meter}',
            f"    kind: upsert{_WHY}\n    identity: [reading_id]\n    compare: [reading_id]{_UNTIL}": (
                "    kind: append\n    identity: [reading_id]"
            ),
            f"    identity: [src_partition, src_offset]\n    compare: [src_partition, src_offset]{_UNTIL}": (
                "    identity: [partition, offset]"
            ),
            "SELECT DISTINCT reading_id\n      FROM readings\n": (
                "SELECT reading_id, meter, TRY_CAST(watt_hours AS BIGINT) AS watt_hours, _partition, _offset FROM readings "
                "WHERE reading_id IS NOT NULL AND TRY_CAST(watt_hours AS BIGINT) IS NOT NULL\n"
            ),
            "SELECT _partition AS src_partition, _offset AS src_offset, _topic, _partition, _offset, _key\n      FROM readings\n": (
                'SELECT _partition AS "partition", _offset AS "offset", decode(_value) AS body, _partition, _offset '
                "FROM readings WHERE reading_id IS NULL OR TRY_CAST(watt_hours AS BIGINT) IS NULL\n"
            ),
        },
        verdict="held",
        anomalies=(),
    ),
    "candles": Shape(
        job="candles.py",
        samples=("trades",),
        schema="""\
CREATE TABLE candles (
  symbol text, minute timestamptz, low numeric, high numeric, volume numeric, trades bigint, PRIMARY KEY (symbol, minute)
);
CREATE TABLE last_price (symbol text PRIMARY KEY, trade_id bigint, price numeric);
""",
        init=(
            *(
                "--topic=trades",
                "--sample=trades.jsonl",
                "--table=candles",
                "--table=last_price",
                "--schema=schema.sql",
            ),
            *("--", "python", "candles.py", "--bootstrap=broker:9092", "--pg=postgresql://etl@db/market"),
            "--checkpoints=/data/checkpoints",
        ),
        edits={
            'trades.jsonl", form: values}': 'trades.jsonl", form: values, key: s}',
            "at: {batch: 2,": "at: {query: candles, batch: 3,",
            "    table: candles\n    kind: append\n    identity: [t_2]\n": (
                "    table: candles\n    kind: upsert\n    identity: [symbol, minute]\n"
            ),
            "    table: last_price\n    kind: append\n    identity: [t_2]\n": (
                "    table: last_price\n    kind: upsert\n    identity: [symbol]\n"
            ),
            f"{_IDENTITY}    candles_table: {{t_2: t_2}}\n    last_price_table: {{t_2: t_2}}\n": """\
  kind: sql
  queries:
    candles_table: SELECT s AS symbol, date_trunc('minute', to_timestamp(T_1 / 1000)) AS minute, min(p::DECIMAL(18,8)) AS low, max(p::DECIMAL(18,8)) AS high, sum(q::DECIMAL(18,8)) AS volume, count(*) AS trades FROM trades GROUP BY ALL
    last_price_table: SELECT s AS symbol, t_2 AS trade_id, p::DECIMAL(18,8) AS price FROM trades QUALIFY row_number() OVER (PARTITION BY s ORDER BY t_2 DESC, _offset) = 1
""",
        },
        verdict="held",
        anomalies=(),
    ),
    "join-into-two-sinks": Shape(
        job="paid_orders.py",
        samples=("purchases", "payments"),
        schema="CREATE TABLE ledger (purchase_id bigint, payment_id bigint, buyer text, cents bigint);\n",
        init=(
            *("--topic=purchases", "--topic=payments", "--sample=purchases=purchases.jsonl"),
            *(
                "--sample=payments=payments.jsonl",
                "--output-topic=to_ship",
                "--table=ledger",
                "--schema=schema.sql",
                "--",
            ),
            *("python", "paid_orders.py", "--kafka=broker:9092", "--db=postgresql://etl@db/shop"),
            "--checkpoint=/data/checkpoints/paid",
        ),
        edits={
            "at: {batch: 2,": "at: {batch: 1,",  # the first batch with purchases and their payments
            'purchases.jsonl", form: values}': 'purchases.jsonl", form: values, key: buyer}',
            'payments.jsonl", form: values}': 'payments.jsonl", form: values, key: purchase}',
            "  topic: purchases\n  columns:\n    ledger_table: {purchase_id: purchase_id}\n"
            "    to_ship_topic: {purchase_id: purchase_id}\n": """\
  queries:
    ledger_table: SELECT purchase_id, payment_id, buyer, cents FROM purchases JOIN payments ON purchase = purchase_id
    to_ship_topic: SELECT purchase_id, payment_id, buyer, cents, buyer AS _to_key FROM purchases JOIN payments ON purchase = purchase_id
""",
            "  kind: identity\n": "  kind: sql\n",
        },
    ),
    "kafka-copy": Shape(
        job="mirror.py",
        samples=("events",),
        init=(
            *("--topic=events", "--sample=events.jsonl", "--records", "--output-topic=events_copy", "--"),
            *("KAFKA_BROKERS=broker:9092", "SOURCE_TOPIC=events", "TARGET_TOPIC=events_copy"),
            *("CHECKPOINT_DIR=/data/checkpoints/mirror", "python", "mirror.py"),
        ),
        edits={
            '    identity: ["n"]\n': '    identity: ["n"]\n    headers: compare\n',
            f'{_IDENTITY}    events_copy_topic: {{"n": "n"}}\n': """\
  kind: sql
  queries:
    events_copy_topic: SELECT n, what, _partition, _offset, _key, _headers FROM events
""",
        },
    ),
    "producer-in-foreach": Shape(
        job="alerts.py",
        samples=("sensors",),
        init=(
            *("--topic=sensors", "--sample=sensors.jsonl", "--output-topic=alerts", "--", "python", "alerts.py"),
            *("--bootstrap-servers=broker:9092", "--checkpoint=/data/checkpoints/alerts"),
        ),
        edits={
            'sensors.jsonl", form: values}': 'sensors.jsonl", form: values, key: sensor}',
            f'{_IDENTITY}    alerts_topic: {{"n": "n"}}\n': """\
  kind: sql
  queries:
    alerts_topic: SELECT n, sensor, celsius, _partition, _offset, _key FROM sensors WHERE celsius > 80
""",
        },
    ),
    "stream-stream-left-join": Shape(
        job="ads_without_clicks.py",
        samples=("shown", "clicked"),
        schema="CREATE TABLE ads (ad_id bigint, page text, click_id bigint);\n",
        init=(
            *("--topic=shown", "--topic=clicked", "--sample=shown=shown.jsonl", "--sample=clicked=clicked.jsonl"),
            *("--table=ads", "--schema=schema.sql", "--", "python", "ads_without_clicks.py", "--kafka=broker:9092"),
            *("--postgres=postgresql://etl@db/ads", "--checkpoint=/data/checkpoints/ads"),
        ),
        edits={
            "at: {batch: 2,": "at: {batch: 4,",  # it writes rows with input or without: ads with their click, or ads without one
            'shown.jsonl", form: values}': 'shown.jsonl", form: values, key: page}',
            'clicked.jsonl", form: values}': 'clicked.jsonl", form: values, key: ad}',
            "  kind: identity\n": "  kind: sql\n",
            "  topic: shown\n  columns:\n    ads_table: {ad_id: ad_id}\n": """\
  queries:
    ads_table: SELECT ad_id, page, click_id FROM shown LEFT JOIN clicked ON ad = ad_id WHERE ad_id < 400
""",
        },
    ),
    "aggregation-per-partition": Shape(
        job="visits_per_partition.py",
        samples=("visits",),
        schema="CREATE TABLE visits (page text PRIMARY KEY, visits bigint);\n",
        init=(
            *("--topic=visits", "--sample=visits.jsonl", "--table=visits", "--schema=schema.sql", "--", "python"),
            *("visits_per_partition.py", "--kafka=broker:9092", "--postgres=postgresql://etl@db/site"),
            "--checkpoint=/data/checkpoints/visits",
        ),
        edits={
            'visits.jsonl", form: values}': 'visits.jsonl", form: values, key: visit}',
            f"    compare: [page]{_UNTIL}\n": "",
            "SELECT DISTINCT page\n      FROM visits\n": "SELECT page, count(*) AS visits FROM visits GROUP BY page\n",
        },
        anomalies=("diverged-replay", "wrong-value"),
    ),
}
