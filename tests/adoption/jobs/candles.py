"""Trades to one-minute candles, and to the last price of each symbol: two queries, both upsert.

The exchange names the trade's id `t` and its time `T`, so Spark has to mind the case of names.
"""

import argparse

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

TRADE = "s STRING, t BIGINT, T BIGINT, p STRING, q STRING"
CANDLE = """
    INSERT INTO candles (symbol, minute, low, high, volume, trades) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (symbol, minute) DO UPDATE
    SET low = EXCLUDED.low, high = EXCLUDED.high, volume = EXCLUDED.volume, trades = EXCLUDED.trades
"""
LAST = """
    INSERT INTO last_price (symbol, trade_id, price) VALUES (%s, %s, %s)
    ON CONFLICT (symbol) DO UPDATE SET trade_id = EXCLUDED.trade_id, price = EXCLUDED.price
    WHERE last_price.trade_id < EXCLUDED.trade_id
"""

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap", required=True)
parser.add_argument("--pg", required=True)
parser.add_argument("--checkpoints", required=True)
args = parser.parse_args()

spark = (
    SparkSession.builder.appName("candles")
    .config("spark.sql.caseSensitive", "true")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
trades = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.bootstrap)
    .option("subscribe", "trades")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), TRADE).alias("trade"))
    .select(
        F.col("trade.s").alias("symbol"),
        F.col("trade.t").alias("trade_id"),
        F.timestamp_millis("trade.T").alias("at"),
        F.col("trade.p").cast("decimal(18,8)").alias("price"),
        F.col("trade.q").cast("decimal(18,8)").alias("quantity"),
    )
)
candles = (
    trades.withWatermark("at", "2 minutes")
    .groupBy("symbol", F.window("at", "1 minute"))
    .agg(
        F.min("price").alias("low"),
        F.max("price").alias("high"),
        F.sum("quantity").alias("volume"),
        F.count("*").alias("trades"),
    )
    .select("symbol", F.col("window.start").alias("minute"), "low", "high", "volume", "trades")
)


def upsert(statement: str, batch: DataFrame) -> None:
    with psycopg.connect(args.pg) as connection, connection.cursor() as cursor:
        cursor.executemany(statement, batch.collect())


(
    candles.writeStream.queryName("candles")
    .outputMode("update")
    .foreachBatch(lambda batch, _: upsert(CANDLE, batch))
    .option("checkpointLocation", f"{args.checkpoints}/candles")
    .start()
)
(
    trades.select("symbol", "trade_id", "price")
    .writeStream.queryName("last_price")
    .foreachBatch(lambda batch, _: upsert(LAST, batch.orderBy("trade_id")))
    .option("checkpointLocation", f"{args.checkpoints}/last_price")
    .start()
)
spark.streams.awaitAnyTermination()
