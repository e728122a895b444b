"""Sales in foreign currencies, each joined with the exchange rate of its day: two streams, with no order between them.

Each sale has the id of its rate, and rates never change: a join on the id gives the same rows in whatever order the two are read.
``--current`` joins each sale with the rate that a table holds when the batch runs; then the rates of the batch, which are for the
next day, go into the table.
"""

from __future__ import annotations

import psycopg
from common import STATEFUL, job_parser, read_topic, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

RECORD = "sale BIGINT, currency STRING, amount INT, rate STRING, cents INT"
SELL = """
    INSERT INTO sales (sale, currency, amount, cents)
    SELECT %(sale)s, currency, %(amount)s, cents FROM current_rates WHERE currency = %(currency)s
    ON CONFLICT (sale) DO UPDATE SET cents = EXCLUDED.cents
"""
QUOTE = "UPDATE current_rates SET cents = %(cents)s WHERE currency = %(currency)s"

parser = job_parser(__doc__, topic="sales", postgres=None)
parser.add_argument("--rates", default="rates", help="input topic of the rates")
parser.add_argument("--current", action="store_true", help="take the current rate, not the one that the sale names")
args = parser.parse_args()


def records(topics: str) -> DataFrame:
    """Sales and rates; a rate has no ``sale``."""
    record = f.from_json(f.col("value").cast("string"), RECORD).alias("record")
    read: DataFrame = read_topic(spark, args.kafka, topics)
    return read.select(record).select("record.*")


def at_current_rate(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.toArrow().to_pylist()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(SELL, [row for row in rows if row["sale"] is not None])
        cursor.executemany(QUOTE, [row for row in rows if row["sale"] is None])


spark = spark_session("sales-with-rates", STATEFUL)
if args.current:
    run(records(f"{args.topic},{args.rates}"), at_current_rate, args.checkpoint)
else:
    sink = PostgresAppend(args.postgres, "sales", pipeline="sales-with-rates", checkpoint=args.checkpoint)
    sales, rates = records(args.topic).drop("cents"), records(args.rates).select("rate", "cents")
    run(sales.join(rates, "rate").select("sale", "currency", "amount", "cents"), sink, args.checkpoint)
