"""The phenomena that the scenario library shows: what a streaming system does to its data when something fails.

A scenario names the ones that it shows (``phenomena: [A5, B12/lost]``). A phenomenon has one or more cases, and a case is shown by two
kinds of scenarios: naive ones, which a run finds violated, and remedies, which hold under the same fault.
`onceproof.scenario_files.rows` finds them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from onceproof.base.registry import suggest
from onceproof.scenario.phenomenon import Case, Phenomenon


def _one(*anomalies: str, missing: str = "") -> tuple[Case, ...]:
    return (Case(anomalies, missing=missing),)


PHENOMENA = (
    Phenomenon(
        "A1",
        "Redelivery to competing consumers",
        "A broker gives the message of a dead or disconnected consumer to another one, which is further ahead, so it comes too late.",
        _one("reordered"),
    ),
    Phenomenon(
        "A2",
        "Redelivery in a share group, and by a retry topic",
        "Kafka reorders too, if members compete for single records or if a refused record waits in a topic of its own.",
        (Case(("reordered",), "share-group"), Case(("reordered",), "retry-topic")),
    ),
    Phenomenon(
        "A3",
        "Independent readers of one log",
        "Groups that read the same log do not notice that one of them is dead or slow.",
        (Case((), "dead"), Case((), "slow")),
    ),
    Phenomenon(
        "A4",
        "The acknowledgement is lost",
        "The message is processed and its acknowledgement never arrives, so the broker delivers it again.",
        _one("duplicate"),
    ),
    Phenomenon(
        "A5",
        "A crash between output and offset",
        "The consumer has written its output and dies before its offset is stored.",
        _one("duplicate"),
    ),
    Phenomenon(
        "A6",
        "A crash between offset and output",
        "The consumer has stored its offset and dies before it has written its output.",
        _one("lost-write"),
    ),
    Phenomenon(
        "A7",
        "Retention overtakes a reader",
        "The log deletes records that a slow or absent consumer has not read, and its client silently continues after them.",
        (Case(("lost-write",), "group"), Case(("lost-write",), "query")),
    ),
    Phenomenon(
        "A8",
        "Replay from an earlier offset",
        "Offsets are set back and the same records are processed again.",
        _one("duplicate"),
    ),
    Phenomenon(
        "A9",
        "A burst of input",
        "Input comes faster than it is processed: it is dropped, kept in memory, or held back.",
        (
            Case(("lost-write",), "dropped"),
            # A batch that is too large for its process fails again and again, and what comes after it waits for ever.
            Case(("stale-tail",), "kept"),
        ),
        "growing memory is not an anomaly of the output: a verdict depends on it only once a process ends for lack of it",
    ),
    Phenomenon(
        "A10",
        "Producer retries without idempotence",
        "A producer sends a batch of records again that the broker has already stored, or stores out of order.",
        (Case(("duplicate", "reordered"), "output"), Case(("duplicate",), "input")),
    ),
    Phenomenon(
        "A11",
        "A record that always fails",
        "A record cannot be processed, however often it is tried: it blocks all others, or it is dropped.",
        (Case(("stale-tail",), "retried"), Case(("lost-write",), "skipped")),
    ),
    Phenomenon(
        "A12",
        "A leader dies",
        "A partition's leader dies with records that it had acknowledged and no other replica had.",
        (Case(("lost-write",), "output"), Case(("input-lost",), "input")),
        "a kill ends the broker's process; what a loss of power also takes, unwritten pages of the file system, stays",
    ),
    Phenomenon(
        "A13",
        "An isolated leader accepts writes",
        "A leader is cut off from its followers, still accepts records, and discards them when it is back.",
        _one("lost-write"),
    ),
    Phenomenon(
        "A14",
        "A dead member's partitions move",
        "A member of a group dies with a record that it has processed, and another member is given its partitions.",
        _one("duplicate"),
    ),
    Phenomenon(
        "A15",
        "A topic is deleted and created again",
        "A consumer continues in the new topic at its position in the old one, past records that it has never seen.",
        _one("lost-write"),
        "with a Spark checkpoint: a run's feed counts the offsets of one topic, and cannot go on in another one",
    ),
    Phenomenon(
        "A16",
        "Partitions are added to a topic",
        "Nobody reads the new partition of an input, and the keys of an output move to other partitions.",
        (Case(("stale-tail",), "input"), Case(("misplaced",), "output")),
    ),
    Phenomenon(
        "B1",
        "Output before checkpoint",
        "The output of a batch is visible, the driver fails before the checkpoint records it, and the batch is replayed.",
        _one("duplicate"),
    ),
    Phenomenon(
        "B2",
        "The outcome of a COMMIT is unknown",
        "The connection breaks at a COMMIT, and the client cannot know whether Postgres has applied it.",
        (Case(("duplicate",), "retried"), Case(("lost-write",), "given-up")),
    ),
    Phenomenon(
        "B3",
        "The answer to EndTxn is lost",
        "Kafka has committed a transaction, and its producer sees a time-out.",
        _one("duplicate"),
        "no released client can end a transaction that another process has prepared (KIP-939), so two-phase commit is not shown",
    ),
    Phenomenon(
        "B4",
        "Half a batch is visible",
        "Each row commits by itself, so readers see a part of a batch.",
        _one("torn-batch"),
    ),
    Phenomenon(
        "B5",
        "Progress before output",
        "Progress is committed before the rows that it counts, and a crash comes in between.",
        _one("lost-write", "commit-ahead-of-effect"),
    ),
    Phenomenon(
        "B6",
        "What idempotence assumes",
        "Skipping or overwriting a replay works only with the same batches, partitions and rows, and one writer.",
        (
            Case(("lost-write",), "same-batches"),
            Case(("diverged-replay",), "same-rows"),
            Case(("duplicate",), "same-partitions"),
            Case(("duplicate", "zombie-write"), "one-writer"),
        ),
    ),
    Phenomenon(
        "B7",
        "A process thought dead is alive",
        "A process pauses, another one takes over, and the first wakes up and writes.",
        (Case(("duplicate", "zombie-write"), "driver"), Case(("duplicate",), "consumer")),
    ),
    Phenomenon(
        "B8",
        "A late end of a transaction",
        "An EndTxn that was delayed on an old connection ends the next transaction of the same producer.",
        _one("lost-write"),
        "producers of librdkafka have one epoch for all their transactions; with a new epoch for each one (KIP-890) a broker refuses it",
    ),
    Phenomenon(
        "B9",
        "A transaction is left open",
        "A dead writer's open transaction hides everything after it from read_committed readers.",
        _one("hanging-transaction"),
    ),
    Phenomenon(
        "B10",
        "Uncommitted input is read",
        "A job reads records of a transaction that is aborted later, or committed later than their rows are visible.",
        (Case(("aborted-read",), "aborted"), Case(("precommitted-read",), "committed")),
    ),
    Phenomenon(
        "B11",
        "Offsets have holes",
        "Aborted records and control records have offsets too, so counting offsets is not counting records.",
        _one("lost-write"),
    ),
    Phenomenon(
        "B12",
        "The checkpoint is lost, damaged or reused",
        "A query starts again with other batch numbers or another id, and its sink trusts the old ones.",
        (
            Case(("lost-write",), "lost"),
            Case(("duplicate",), "damaged"),
            Case(("lost-write",), "reused"),
        ),
    ),
    Phenomenon(
        "B13",
        "Two sinks in one batch",
        "One sink of a batch has committed when the driver dies, and the other has not.",
        _one("sink-disagreement"),
    ),
    Phenomenon(
        "B14",
        "Several attempts at a task",
        "Spark runs a task again: what the first attempt has written stays, and what it has computed may come out differently.",
        (Case(("duplicate",), "retry"), Case(("duplicate",), "speculation"), Case(("lost-write",), "computed-again")),
    ),
    Phenomenon(
        "B15",
        "Totals across batches",
        "A total is larger than one batch, and a crash makes a batch count twice or not at all.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "B16",
        "The sink refuses and the job continues",
        "A job logs the error of its sink, continues, and loses what was refused.",
        (
            Case(("lost-write",), "away"),
            Case(("lost-write",), "record"),
            Case(("lost-write",), "too-large"),
        ),
    ),
    Phenomenon(
        "B17",
        "Stopped in the middle of a batch",
        "A job is stopped while its function writes a batch. If the function returns early, Spark logs the batch as done.",
        (Case(("lost-write",), "sigterm"), Case(("lost-write",), "query-stop")),
    ),
    Phenomenon(
        "B18",
        "An answer comes later than its client waits",
        "A database or its network is slow, not down: its client gives up and writes again what is committed, or on its way.",
        (Case(("duplicate",), "latency"), Case(("duplicate",), "bandwidth")),
    ),
    Phenomenon(
        "B19",
        "A job that a scheduler starts",
        "A job processes what is there and ends (availableNow). If it dies before that, the next start replays its last batch.",
        _one("duplicate"),
    ),
    Phenomenon(
        "B20",
        "Output before plan",
        "In real-time mode and in continuous processing rows are visible before Spark records their input; a driver that dies in between "
        "reads that input again.",
        (Case(("duplicate",), "real-time"), Case(("duplicate",), "continuous")),
    ),
    Phenomenon(
        "C1",
        "State is rebuilt after a failure",
        "State comes back from a checkpoint, a changelog or the input, or it is lost with the process.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "C2",
        "Windows across a crash",
        "The process dies in the middle of a window.",
        (
            Case(("wrong-value",), "tumbling"),
            Case(("wrong-value",), "hopping"),
            Case(("wrong-value",), "sliding"),
            Case(("wrong-value",), "session"),
        ),
    ),
    Phenomenon(
        "C3",
        "Events that come too late",
        "Events behind the watermark are dropped, counted by nobody, and differently after a restart.",
        _one("lost-write"),
    ),
    Phenomenon(
        "C4",
        "Event time and processing time",
        "A stopped job catches up, and a rate by processing time shows a peak that never was.",
        _one("wrong-value"),
        "no input queues up while a driver is down, because the feed waits for it; a driver without its checkpoint catches up instead",
    ),
    Phenomenon(
        "C5",
        "Whose clock",
        "A device with a wrong clock puts its events into wrong windows.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "C6",
        "A timer fires again",
        "A timer in the state has fired when the process dies, and fires again in the replay of its batch.",
        _one("duplicate"),
    ),
    Phenomenon(
        "D1",
        "Two streams joined",
        "One side of a join waits in the state when the process dies.",
        _one("lost-write"),
    ),
    Phenomenon(
        "D2",
        "A stream joined with a table",
        "An event is joined with the table as it is now, or as a crash has left it, and not as it was at the event's time.",
        (Case(("wrong-value",), "current-table"), Case(("wrong-value",), "crash")),
    ),
    Phenomenon(
        "D3",
        "Two tables joined",
        "A materialised view is maintained from the changes of its tables, and a crash comes in between.",
        _one("unexplained", "wrong-value"),
    ),
    Phenomenon(
        "D4",
        "Joins depend on the order of streams",
        "A rerun reads two streams in another order, and its join gives other rows.",
        _one("diverged-replay"),
    ),
    Phenomenon(
        "D5",
        "Two writers, two orders",
        "Two clients write to a database and a search index, in different orders, and neither sees an error.",
        _one("sink-disagreement"),
    ),
    Phenomenon(
        "D6",
        "Half of a dual write",
        "A process dies between its writes to two systems.",
        _one("sink-disagreement"),
    ),
    Phenomenon(
        "D7",
        "Change data capture resumes",
        "A consumer of a database's changes dies in the middle of a transaction and continues at its position.",
        _one("lost-write", "duplicate"),
    ),
    Phenomenon(
        "D8",
        "A snapshot and its log position",
        "Rows are written while the initial snapshot is taken, and the changes do not begin where it ends.",
        _one("lost-write", "duplicate"),
    ),
    Phenomenon(
        "D9",
        "A view from a compacted log",
        "A view is built from the newest value of each key and the deletions, with a crash in between.",
        _one("unexplained", "wrong-value"),
    ),
    Phenomenon(
        "D10",
        "Events and snapshots of state",
        "State is derived from events, and a crash comes between an event and the snapshot.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "D11",
        "A transaction is left in doubt",
        "The coordinator of a two-phase commit dies between its two commits, and what it does with the rest when it is back decides.",
        _one("sink-disagreement", "lost-write"),
    ),
    Phenomenon(
        "D12",
        "A prepared transaction is gone",
        "A sink dies with a transaction prepared, someone rolls it back, and the sink takes the missing transaction for a committed one.",
        _one("lost-write"),
        "no released client of Kafka can resume a transaction (KIP-939), so only Postgres shows it",
    ),
    Phenomenon(
        "D13",
        "A replica lags",
        "A replica of a database does not have the last commits. A program reads its progress from it, or it becomes the primary.",
        (Case(("duplicate",), "read"), Case(("lost-write",), "promoted")),
    ),
    Phenomenon(
        "E1",
        "Monitoring with alerts",
        "Metrics become statistics per minute and alerts, and each alert must be sent once.",
        _one("duplicate", "lost-write"),
    ),
    Phenomenon(
        "E2",
        "A year of real data",
        "All 336,776 flights of a year pass through the reference pipelines under faults.",
        _one(),
    ),
    Phenomenon(
        "F1",
        "An aggregation is changed",
        "A new version adds up something else, and continues with the sums that the old one has left in the state.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "F2",
        "The schema of a state is changed",
        "A new version does not find in the state what the old one has written there, and starts from nothing.",
        _one("wrong-value"),
    ),
    Phenomenon(
        "F3",
        "A column is added",
        "A new version writes one more column, and only in the rows that it reads itself.",
        _one("wrong-value"),
    ),
)


def of(name: str) -> tuple[Phenomenon, tuple[Case, ...]]:
    """The phenomenon and the cases that ``name`` means: ``A3`` all of them, ``A3/slow`` one. Raises `ValueError` with a suggestion."""
    for phenomenon in PHENOMENA:
        if name == phenomenon.id:
            return phenomenon, phenomenon.cases
        for case in phenomenon.cases:
            if case.name and name == f"{phenomenon.id}/{case.name}":
                return phenomenon, (case,)
    raise ValueError(f"there is no such phenomenon; {suggest(name, known())}")


def known() -> list[str]:
    """All names that a scenario can write."""
    return [name for phenomenon in PHENOMENA for name in phenomenon.names()]


def _checked(name: str) -> str:
    of(name)
    return name


#: A name that a scenario can write. Editors complete it.
PhenomenonName = Annotated[str, AfterValidator(_checked), WithJsonSchema({"type": "string", "enum": known()})]
