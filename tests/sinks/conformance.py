"""The checks that every sink has to pass: one function per fault, the same for all sinks.

``test_conformance.py`` runs `CHECKS` on the shipped sinks, and ``test_mutants.py`` on copies of them in which one line is changed or gone.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any

from .bench import LONGEST_S, Bench
from .dead_letter_topics import CHECKS as DEAD_LETTER_TOPICS
from .dead_letters import CHECKS as DEAD_LETTERS
from .formats import OF_FORMATS
from .outbox import CHECKS as OUTBOX
from .partitioned import OF_TASKS, WITHOUT_STATE
from .staged import CHECKS as STAGED
from .targets import STATELESS


def batches_in_order(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    sink = bench.target.recipe(checkpoint).make()
    for batch in (0, 1):
        assert sink.write(bench.target.rows(checkpoint, batch), batch)
    bench.shows(*range(8))


def replay(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    assert bench.write(checkpoint, 0)
    assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))


def crash_before_the_commit(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.die(checkpoint, 1, "before-sink-commit")
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def crash_after_the_commit(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.die(checkpoint, 1, "after-sink-commit")
    assert not bench.write(checkpoint, 1)
    bench.shows(*range(8))


def lost_answer(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream")):
        bench.refused("CommitUnknown", lambda: bench.write(checkpoint, 0))
    assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))


def lost_request(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("upstream")):
        bench.refused("CommitUnknown", lambda: bench.write(checkpoint, 0))
    assert bench.write(checkpoint, 0)
    bench.shows(*range(5))


def lost_answer_on_a_path_that_heals(bench: Bench) -> None:
    """The path works again as soon as the commit has failed: a sink that now aborts, or writes again, does harm."""
    checkpoint = bench.checkpoint(5, 8)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream"), commit_failed=bench.target.heal):
        try:
            bench.write(checkpoint, 0)
        except bench.error("CommitUnknown"):
            assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def refused_rows(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.target.refuse()
    try:
        written = bench.write(checkpoint, 1)
    except bench.error("CommitUnknown"):
        raise AssertionError("nothing was written, and the sink says that it does not know") from None
    except Exception:
        written = False
    assert not written, "the output refused the rows, and the sink says that it wrote them"
    bench.shows(*range(5))


def query_restarted_in_the_same_process(bench: Bench) -> None:
    """The program catches the error and starts the query again, with the sink that it has."""
    checkpoint = bench.checkpoint(5)
    sink = bench.target.recipe(checkpoint).make()
    rows = bench.target.rows(checkpoint, 0)
    with bench.when(before_sink_commit=lambda: bench.target.lose("upstream")):
        bench.refused("CommitUnknown", lambda: sink.write(rows, 0))
    assert sink.write(rows, 0)
    assert not sink.write(rows, 0)
    bench.shows(*range(5))


def older_start(bench: Bench) -> None:
    """A driver that was thought dead begins a batch after its successor has started, and written another."""
    checkpoint = bench.checkpoint(5, 8)
    zombie = bench.target.recipe(checkpoint).make()
    successor = bench.target.recipe(checkpoint).make()
    rows = bench.target.rows(checkpoint, 1)
    assert successor.write(bench.target.rows(checkpoint, 0), 0)
    if bench.target.fences:
        bench.refused("Fenced", lambda: zombie.write(rows, 1))
        assert successor.write(rows, 1)
    else:
        assert zombie.write(rows, 1)
        assert not successor.write(rows, 1)
    bench.shows(*range(8))


def late_commit(bench: Bench) -> None:
    """A driver is paused before its commit, its successor starts and takes up the batch, and then the commit is sent."""
    checkpoint = bench.checkpoint(5, 8)
    wrote: list[bool] = []
    with bench.paused(checkpoint, 0) as resume:
        successor = threading.Thread(target=lambda: wrote.append(bench.write(checkpoint, 0)), daemon=True)
        successor.start()
        successor.join(1.5)  # in vain if it waits for the predecessor, as it does on Postgres
        result = resume()
        successor.join(LONGEST_S)
    results = f"the predecessor's result is {result}, its successor's {wrote}"
    if bench.target.publishes and result is None:
        assert wrote == [False], results  # fenced after its commit, by the successor, which publishes its batch
    else:
        assert [result, *wrote].count(True) == 1, results
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def predecessor_that_never_ends(bench: Bench) -> None:
    """A driver is paused before its commit, connected and silent, until its successor has written the batch."""
    checkpoint = bench.checkpoint(5, 8)
    with bench.paused(checkpoint, 0) as resume:
        assert bench.write(checkpoint, 0)
        assert not resume()
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def two_writers_in_the_middle(bench: Bench) -> None:
    """Two drivers are in the middle of the same batch at once, before either has recorded it."""
    checkpoint = bench.checkpoint(5)
    ends: list[bool | None] = []

    def drive() -> None:
        try:
            ends.append(bench.write(checkpoint, 0))
        except Exception:
            ends.append(None)

    drivers = [threading.Thread(target=drive, daemon=True) for _ in range(2)]
    with bench.target.held_rows():
        for driver in drivers:
            driver.start()
            driver.join(1.0)
    for driver in drivers:
        driver.join(LONGEST_S)
    # A sink with two commits may lose the second one to the other driver, and end with an error.
    assert ends.count(True) <= 1, f"the results are {ends}"
    bench.shows(*range(5))


def lost_checkpoint(bench: Bench) -> None:
    """The query begins again, with another id and batch 0, and reads its input from the start in the same batches."""
    before = bench.checkpoint(5, 8)
    bench.write(before, 0)
    again = bench.checkpoint(5, 8, query="22222222-0000-0000-0000-000000000000")
    assert not bench.write(again, 0)
    assert bench.write(again, 1)
    bench.shows(*range(8))


def lost_checkpoint_with_state(bench: Bench) -> None:
    """As `lost_checkpoint`, but the query closes windows: by what it reads, no batch shows whether its windows were written."""
    bench.write(bench.checkpoint(5, 8, stateful=True), 0)
    again = bench.checkpoint(5, 8, query="22222222-0000-0000-0000-000000000000", stateful=True)
    bench.refused("OffsetGap", lambda: bench.write(again, 0))
    bench.refused("OffsetGap", lambda: bench.write(again, 1))
    bench.shows(*range(5))
    assert not bench.write(again, 0, rebuilds_state=True)
    assert bench.write(again, 1, rebuilds_state=True)
    bench.shows(*range(8))


def other_batch_boundaries(bench: Bench) -> None:
    bench.write(bench.checkpoint(5), 0)
    again = bench.checkpoint(8, query="22222222-0000-0000-0000-000000000000")
    bench.refused("OffsetGap", lambda: bench.write(again, 0))
    bench.shows(*range(5))


def gap(bench: Bench) -> None:
    bench.write(bench.checkpoint(5), 0)
    bench.refused("OffsetGap", lambda: bench.write(bench.checkpoint(7, 9), 1))
    bench.shows(*range(5))


def lost_progress(bench: Bench) -> None:
    bench.refused("OffsetGap", lambda: bench.write(bench.checkpoint(5, 8), 1))
    bench.shows()


def batch_without_input(bench: Bench) -> None:
    """After the watermark has moved, Spark runs a batch without input, which emits closed windows."""
    checkpoint = bench.checkpoint(5, 5)
    bench.write(checkpoint, 0)
    windows = bench.target.rows(bench.checkpoint(5, 7), 1)
    for expected in (True, False):
        assert bench.target.recipe(checkpoint).make().write(windows, 1) is expected
    bench.shows(*range(7))
    other = bench.checkpoint(5, 5, query="22222222-0000-0000-0000-000000000000")
    bench.refused("OffsetGap", lambda: bench.target.recipe(other).make().write(windows, 1))


CHECKS: tuple[Callable[[Bench], None], ...] = (
    batches_in_order,
    replay,
    crash_before_the_commit,
    crash_after_the_commit,
    lost_answer,
    lost_request,
    lost_answer_on_a_path_that_heals,
    refused_rows,
    query_restarted_in_the_same_process,
    older_start,
    late_commit,
    predecessor_that_never_ends,
    two_writers_in_the_middle,
    lost_checkpoint,
    lost_checkpoint_with_state,
    other_batch_boundaries,
    gap,
    lost_progress,
    batch_without_input,
)


def increments_add_up(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    again = bench.target.rows(checkpoint, 0)
    assert bench.target.recipe(checkpoint).make().write(again, 1)
    bench.shows(*range(5), *range(5))


def commit_is_sent_again(bench: Bench) -> None:
    """A commit that times out is sent again, on a path that works again; its answer reports the outcome."""
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream"), commit_failed=bench.target.heal):
        assert bench.write(checkpoint, 0, commit_attempts=8)
    bench.shows(*range(5))


def commit_after_the_successor_has_read(bench: Bench) -> None:
    """The predecessor's commit is sent after its successor has read the progress, and before it writes."""
    checkpoint = bench.checkpoint(5)
    reader = importlib.import_module(f"{bench.target.package}.kafka_progress").ProgressReader
    read = reader.last
    predecessor = threading.Thread(target=lambda: suppressed(lambda: bench.write(checkpoint, 0)), daemon=True)
    with bench.target.held_rows() as hold:
        predecessor.start()
        assert hold.waiting.wait(LONGEST_S)

        def last(self: Any) -> Any:
            found = read(self)
            hold.go.set()
            predecessor.join(LONGEST_S)
            return found

        reader.last = last
        try:
            bench.write(checkpoint, 0)
        finally:
            reader.last = read
    bench.shows(*range(5))


def suppressed(do: Callable[[], object]) -> None:
    with suppress(Exception):
        do()


#: Checks for one sink only.
OF: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "postgres-increment": (increments_add_up,),
    "kafka": (commit_is_sent_again, commit_after_the_successor_has_read),
    "kafka-tasks": (commit_is_sent_again, commit_after_the_successor_has_read, *OF_TASKS),
    **OF_FORMATS,
    **OUTBOX,
    **STAGED,
    **DEAD_LETTERS,
    **DEAD_LETTER_TOPICS,
}

#: Of queries with state. A sink that refuses them has to pass `WITHOUT_STATE` instead.
WITH_STATE = (lost_checkpoint_with_state, batch_without_input)


def checks_of(sink: str) -> tuple[Callable[[Bench], None], ...]:
    """All checks of a sink of `targets`."""
    of_all = (*(check for check in CHECKS if check not in WITH_STATE), *WITHOUT_STATE) if sink in STATELESS else CHECKS
    return (*of_all, *OF.get(sink, ()))


#: Name -> check.
BY_NAME = {check.__name__: check for check in (*CHECKS, *WITHOUT_STATE, *chain.from_iterable(OF.values()))}
