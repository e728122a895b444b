"""What Spark calls of a streaming format. Not imported before a format is registered: it needs PySpark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource


class Writing(Protocol):
    """How one format writes. Spark pickles it, and the messages."""

    name: str

    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None: ...

    def write(self, batches: Any, batch_id: int, run: str) -> Any: ...

    def commit(self, messages: Any, batch_id: int) -> bool: ...

    def abort(self, messages: Any) -> None: ...


def data_source(writing: type[Writing]) -> type[DataSource]:
    """The class that a session registers. It is made here, so that no module needs PySpark to be imported."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Message(WriterCommitMessage):
        def __init__(self, content: Any) -> None:
            self.content = content

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self, own: Writing) -> None:
            self._own = own

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None, "Spark calls it in tasks"
            batch, run = (
                context.getLocalProperty("streaming.sql.batchId"),
                context.getLocalProperty("spark.jobGroup.id"),
            )
            assert batch is not None and run is not None, "Spark sets both for a streaming query"
            return Message(self._own.write(iterator, int(batch), run))

        # Without an annotation of the messages: those of tasks that failed are None.
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  # Spark's name
            self._own.commit([message.content for message in messages], batchId)

        def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803  # Spark's name
            self._own.abort([message.content for message in messages if message is not None])

    class Format(DataSource):
        @classmethod
        def name(cls) -> str:
            return writing.name

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802  # Spark's name
            return Writer(writing(self.options, schema.names))

    return Format
