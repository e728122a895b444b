"""Orders with the payment that came within a minute, each appended to Postgres once; an unpaid order without one, when none can come any more.

A join of two streams. Paid orders are written by the batch that reads the payment; unpaid ones by a batch without input, which
Spark runs when the watermark has passed the minute.
"""

from __future__ import annotations

from common import STATEFUL, appending, job_parser, read_topic, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

parser = job_parser(__doc__, naive=True, postgres=None, table="orders_paid")
parser.add_argument("--topic", default="till", help="input topic: orders and payments in turns")
parser.add_argument("--no-data-batches", default="true", help="spark.sql.streaming.noDataMicroBatches.enabled")
parser.add_argument("--trigger", help="processing-time trigger, for example '5 seconds'; default: as fast as possible")
args = parser.parse_args()


def with_payments(till: DataFrame) -> DataFrame:
    """Every order once: with its payment, or with nulls. Every fifth order is never paid.

    Record 2N is order N and record 2N+1 its payment. Record N is N seconds after the beginning of 2024.
    """
    entry = f.from_json(f.col("value").cast("string"), "id BIGINT").alias("entry")
    seconds = f.timestamp_seconds(f.lit(1_704_067_200) + f.col("id"))
    entries = till.select(entry).select("entry.*").select("id", seconds.alias("at"))
    number = f.floor(f.col("id") / 2)
    orders = entries.where("id % 2 = 0").select(number.alias("order_id"), f.col("at").alias("ordered_at"))
    payments = entries.where("id % 2 = 1 AND id % 10 <> 1").select(
        number.alias("payment"), f.col("at").alias("paid_at")
    )
    orders = orders.withWatermark("ordered_at", "30500 milliseconds")
    payments = payments.withWatermark("paid_at", "30500 milliseconds")
    soon = "payment = order_id AND paid_at >= ordered_at AND paid_at <= ordered_at + INTERVAL 1 MINUTE"
    return orders.join(payments, f.expr(soon), "leftOuter")


no_data = {"spark.sql.streaming.noDataMicroBatches.enabled": args.no_data_batches}
spark = spark_session("orders-with-payments", STATEFUL | no_data)
rows = with_payments(read_topic(spark, args.kafka, args.topic))
sink = appending(args, "orders-with-payments")
writer = rows.writeStream.foreachBatch(sink).outputMode("append").option("checkpointLocation", args.checkpoint)
if args.trigger is not None:
    writer = writer.trigger(processingTime=args.trigger)
writer.start().awaitTermination()
