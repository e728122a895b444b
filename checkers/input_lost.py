"""``input-lost``: the broker lost records that it had acknowledged."""

from __future__ import annotations

from collections import Counter

from onceproof.base.errors import NotEvaluated
from onceproof.base.words import are, times
from onceproof.judge.case.case import Case
from onceproof.judge.case.removed import compacted_inputs
from onceproof.judge.checker import Checker, Explanation, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import MODELS, World, identity
from onceproof.judge.witness import Row, by, cause_of, columns, finding, sums, total_of

# Digest first, as in `onceproof.judge.relations.compare`: only ranges of offsets that differ are compared record by
# record, so a clean run costs two scans and little memory.
_ACKED = """
    SELECT topic, "partition", "offset", seq, "offset" // 8192 AS stretch FROM history.sent WHERE status = 'acked'"""
_PRESENT = """SELECT topic, "partition", "offset", "offset" // 8192 AS stretch FROM history.input"""

_DIFFERING = f"""
    CREATE OR REPLACE TEMP TABLE differing AS
    SELECT topic, "partition", stretch
    FROM (SELECT topic, "partition", stretch, "offset", 1 AS sign FROM ({_ACKED}) UNION ALL
          SELECT topic, "partition", stretch, "offset", -1 FROM ({_PRESENT}))
    GROUP BY ALL HAVING sum(sign) <> 0 OR sum(sign * hash("offset")::HUGEINT) <> 0"""  # noqa: S608

_LOST = f"""
    CREATE OR REPLACE TEMP TABLE lost_input AS
    WITH acked AS ({_ACKED}),
    present AS ({_PRESENT}),
    sent AS (
        SELECT *, row_number() OVER (PARTITION BY topic, "partition", "offset" ORDER BY seq) AS nth
        FROM acked SEMI JOIN differing USING (topic, "partition", stretch)),
    held AS (SELECT *, true AS there FROM present SEMI JOIN differing USING (topic, "partition", stretch))
    SELECT s.topic, s."partition", s."offset", s.seq, p.start_offset, p.end_offset,
           CASE WHEN h.there THEN 'acknowledged at an offset already taken'
                WHEN s."offset" < p.start_offset THEN 'removed by retention'
                WHEN s."offset" >= p.end_offset THEN 'beyond the end of the log' ELSE 'missing in the log' END AS how
    FROM sent s LEFT JOIN held h ON h.topic = s.topic AND h."partition" = s."partition" AND h."offset" = s."offset"
    LEFT JOIN history.partitions p ON p.topic = s.topic AND p."partition" = s."partition"
    WHERE h.there IS NULL OR s.nth > 1"""  # noqa: S608

# Compaction keeps the log's start and end.
_COMPACTED = """{what} FROM lost_input WHERE topic = $topic AND how = 'missing in the log'"""

_TOTALS = """
    SELECT topic AS output, how || ' (' || topic || '/' || "partition" || ')' AS label, count(*) AS total
    FROM lost_input GROUP BY ALL ORDER BY output, label"""

_WITNESSES = """SELECT * FROM lost_input WHERE topic = $output ORDER BY "partition", "offset" LIMIT $limit"""


def broker_lost_input(world: World, choose: Choices) -> Named:
    """The broker loses records before the job can read them, so no output shows the loss."""
    world.lost = choose.some([r for r in world.records if r.visibility == "committed"])
    world.records = [r for r in world.records if r not in world.lost]
    taken = [r for r in world.records if r.visibility == "committed"]
    choose.need(all(any(MODELS[output].takes(r) for r in taken) for output in world.outputs))
    world.work()
    lost = (identity(topic="in", partition=r.partition, offset=r.offset) for r in world.lost)
    return {("input-lost", "in"): Counter(lost)}


@checkers.register("input-lost")
class InputLost(Checker):
    """Counts input records that the broker acknowledged and whose offset the log does not hold after the run.

    Of several records that were acknowledged at one offset, all but one count, since a log holds one record per offset
    (Jepsen's Kafka workload calls them inconsistent offsets).

    The output of the finding is the input topic: no oracle expects effects of such records, so no output shows the
    loss. The loss is attributed to retention where the partition's log begins above the record, and to truncation where
    it ends at or below it (an unclean leader election, KIP-106; Jepsen's Kafka report of 2013 shows one). The check
    uses the producer's ledger, so it does not know the records of other producers. Holes in the
    log of a topic that the scenario compacts are not evaluated: compaction removes all but the last record of a key, and
    the ledger records no keys.
    """

    meaning = "the broker lost records that it had acknowledged"
    explanation = Explanation(
        example="The producer has the broker's acknowledgement for offset 99. The topic ends at offset 98.",
        causes=(
            "acks=1: the leader acknowledged and died before its followers had the record (crash of the leader).",
            "An unclean leader election makes a replica the leader that lacks acknowledged records.",
            "Retention deleted segments before the job had read them; with failOnDataLoss=false the job goes on silently.",
            "All replicas lost power with the record only in the page cache.",
        ),
        decided="The producer's ledger lists the record as acknowledged, with partition and offset, and the topic as read back "
        "after the run does not hold that offset: its log begins above it (retention), ends below it (truncation), or has a "
        "hole. The pipeline is not to blame, and no oracle expects output from the record, so no output shows the loss. Only "
        "input that the harness fed has a ledger. Holes in a topic that the scenario compacts are not evaluated: compaction "
        "removes all but the last record of a key, and the ledger records no keys.",
        stops=(
            "acks=all, min.insync.replicas=2 on three brokers, unclean.leader.election.enable=false.",
            "Retention well beyond the longest pause of the job, and failOnDataLoss=true.",
        ),
        sources=(
            "Kafka documentation: Replication, unclean leader election",
            "Jepsen, Kafka (2013): acknowledged writes lost with the in-sync replicas",
            "KIP-966: Eligible Leader Replicas",
        ),
    )
    rule = FORBIDDEN
    comes_with = {
        "unexplained": "the job had read the record before the broker lost it",
        "wrong-value": "a sum or a state includes the record, which the job had read before the broker lost it",
    }
    damages = (Damage(broker_lost_input, "an acknowledged record that the log does not hold"),)

    by_digest = True

    def check(self, case: Case) -> Results:
        case.sql(_DIFFERING)
        if not case.number("SELECT count(*) FROM differing"):
            return
        case.sql(_LOST)
        holes = {topic: _without_holes(case, topic) for topic in compacted_inputs(case)}
        for rows in by(case.rows(_TOTALS), "output"):
            lost = times(total_of(rows), "acknowledged input record")
            summary = f"the broker lost {lost}: {', '.join(sums(rows, 'label'))}"
            identity = columns("topic", "partition", "offset")
            yield finding(case, "input-lost", rows, summary, _WITNESSES, _argument, identity=identity)
        for topic, number in holes.items():
            if number:
                raise NotEvaluated(
                    f"{times(number, 'acknowledged record')} {are(number)} missing in the log of {topic}: compaction "
                    "(cleanup.policy) may have removed them, and the ledger records no keys that would show it"
                )


def _without_holes(case: Case, topic: str) -> int:
    """Drop from ``lost_input`` what compaction may have removed, and return how many records that is."""
    number = case.number(_COMPACTED.format(what="SELECT count(*)"), {"topic": topic})
    case.sql(_COMPACTED.format(what="DELETE"), {"topic": topic})
    return number


def _argument(_case: Case, row: Row) -> str:
    place = f"{row['topic']}/{row['partition']}"
    log = {
        "removed by retention": f"the log of {place} begins at offset {row['start_offset']}",
        "beyond the end of the log": f"the log of {place} ends at offset {row['end_offset']}",
        "missing in the log": f"the log of {place} holds no record there",
        "acknowledged at an offset already taken": "another record was acknowledged there too, "
        f"and the log of {place} holds one record there",
    }[row["how"]]
    return f"Record number {row['seq']} was acknowledged as {cause_of(row)}.\nBut {log}."
