"""Orders to MariaDB with PyMySQL: each batch is inserted and committed. With ``--upsert`` a row that is there is replaced."""

from __future__ import annotations

import argparse
import os

import pymysql
from common import read_topic, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from sqlalchemy.engine import make_url

parser = argparse.ArgumentParser(description=__doc__)
for name in ("kafka", "topic", "table", "checkpoint"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--upsert", action="store_true")

COLUMNS = ("order_id", "serial", "customer", "price", "ordered_at")


def main() -> None:
    args = parser.parse_args()
    url = make_url(os.environ["SHOP_DATABASE"])
    insert = f"INSERT INTO {args.table} ({', '.join(COLUMNS)}) VALUES (%s, %s, %s, %s, %s)"
    if args.upsert:
        insert += f" ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in COLUMNS[1:])}"

    def write(batch: DataFrame, _batch_id: int) -> None:
        rows = [tuple(row) for row in batch.select(*COLUMNS).collect()]
        with (
            pymysql.connect(
                host=url.host, port=url.port, user=url.username, password=url.password, database=url.database
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.executemany(insert, rows)
            connection.commit()

    order = "order_id BIGINT, customer STRING, amount STRING, ordered_at TIMESTAMP"
    orders = read_topic(spark_session("mariadb"), args.kafka, args.topic)
    booked = orders.select(f.from_json(f.col("value").cast("string"), order).alias("o")).select(
        "o.order_id",
        f.expr("o.order_id + 9007199254740993L").alias("serial"),
        "o.customer",
        f.expr("CAST(o.amount AS DECIMAL(12, 2)) * 100000000.00000001BD").alias("price"),
        f.expr("timestamp_micros(unix_micros(o.ordered_at) + o.order_id)").alias("ordered_at"),
    )
    booked.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
