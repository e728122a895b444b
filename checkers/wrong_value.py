"""``wrong-value``: the right identity with wrong content."""

from __future__ import annotations

import json
from collections import Counter

from onceproof.base.words import times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.findings import Finding
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import World
from onceproof.judge.witness import Row, behind, counted, finding, input_of, named_values, noun, sums
from onceproof.values.canonical import literal, member

# For each identity, one content that is expected but missing (``wanted``) and one that is there but not expected, or not that
# often (``found``).
_WRONG = """
    CREATE OR REPLACE TEMP TABLE wrong_values AS
    WITH pairs AS (
        SELECT output, id, min(content) FILTER (actual > expected) AS found, min(content) FILTER (expected > actual) AS wanted
        FROM judge.counts SEMI JOIN (FROM judge.remaining WHERE wrong > 0) USING (output, id) GROUP BY output, id)
    SELECT t.output, t.id, t.wrong, s.found, coalesce(s.wanted, e.content) AS wanted, e.topic, e."partition", e."offset",
           b.query, b.batch, false AS stale, NULL::VARCHAR AS overwritten_at
    FROM judge.remaining t JOIN pairs s USING (output, id)
    JOIN judge.expected e ON e.output = t.output AND e.id = t.id
    LEFT JOIN judge.output_batches b ON b.output = e.output AND b.topic = e.topic AND b."partition" = e."partition"
         AND e."offset" >= b.start_offset AND e."offset" < b.end_offset
    WHERE t.wrong > 0
    QUALIFY row_number() OVER (PARTITION BY t.output, t.id
        ORDER BY e.content IS DISTINCT FROM s.wanted, e."offset", e.topic, e."partition", b.batch) = 1"""

# The upsert held the right state before it was overwritten: the wrong one came later under the same key, in the same partition.
_STALE = """
    UPDATE wrong_values w SET stale = true, overwritten_at = s.place FROM (
        SELECT c.output, c.id, max_by(c.place, (c.pos, c.lane)) AS place
        FROM judge.changes c JOIN wrong_values v ON v.output = c.output AND v.id = c.id AND v.wanted = c.content
        WHERE c.output = $output AND c.visibility = 'committed' AND c.op IN ('insert', 'update')
          AND EXISTS (FROM judge.effects e WHERE e.output = c.output AND e.id = c.id AND e.content = v.found AND e.lane = c.lane
                      AND e."key" IS NOT DISTINCT FROM c."key" AND coalesce(e.pos >= c.pos, true))
        GROUP BY ALL) s
    WHERE w.output = s.output AND w.id = s.id"""

# A state that later input may still change: the run did not drain, and no recorded progress covers the last cause of the right state.
_UNFINISHED = """
    DELETE FROM wrong_values w WHERE w.output = $output AND NOT EXISTS (
        FROM judge.progress g WHERE g.output = w.output AND g.topic = w.topic AND g."partition" = w."partition"
            AND w."offset" < g.end_offset)
    RETURNING w.id"""

_TOTALS = """
    SELECT {output} AS output, {direction} AS label, query || '/' || batch AS of_batch, sum(wrong)::BIGINT AS total
    FROM wrong_values WHERE output = {output} GROUP BY ALL ORDER BY ALL"""

_COLUMNS = "SELECT DISTINCT unnest([{columns}]) FROM wrong_values WHERE output = {output}"

_WITNESSES = """
    SELECT *, {direction} AS direction FROM wrong_values WHERE output = {output}
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""


def other_content(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = choose.some(world.visible(output))
    for _, write in sites:
        write.falsify()
    return {("wrong-value", output): Counter(write.identity for _, write in sites)}


@checkers.register("wrong-value")
class WrongValue(Checker):
    """Counts effects whose identity is expected and whose content is not (``wrong`` of `onceproof.judge.relations.compare`).

    Effects that uncommitted input explains (``aborted-read``, ``precommitted-read``) and a second state of a key in
    another partition (``misplaced``) do not count. Each effect is attributed by how it is wrong:

    - ``stale``: an upsert held the expected state, and another state was written over it, under the same key;
    - ``inflated``, ``deflated``: all columns that differ are numbers, and all are above, or all below, the expected ones;
    - ``different``: anything else.
    """

    meaning = "the right identity with wrong content: inflated, deflated, stale"
    explanation = Explanation(
        example="The hour 14:00 of carrier AA counts 47 departures; the input holds 41.",
        causes=(
            "Increments (count = count + delta) are applied again when a batch is replayed (crash at after-sink-commit).",
            "Updates arrive out of order, or are applied without a guard, and an older state overwrites a newer one.",
            "State is lost, or restored from another version than the offsets: state in the driver's memory, a removed "
            "checkpoint, a stale state file.",
            "A window is computed by processing time: after a pause the backlog falls into one window.",
            "The row holds a value that differs in each execution: now(), rand(), the order of a non-deterministic aggregate.",
        ),
        decided="The identity is expected and present, and its compared columns differ from every content that the "
        "oracle expects of it: all above (inflated), all below (deflated), overwritten after it was right (stale), or "
        "otherwise. Columns under ignore are not compared, and the report lists them; numbers within the tolerance "
        "are equal. A row that uncommitted input would explain is an aborted-read instead. Not evaluated for rows of kind "
        "upsert of a run that did not drain, unless recorded progress covers the last input of the row: the input that is "
        "left may still change it.",
        stops=(
            "Postgres: absolute values with a guard (update only if the new offset is higher), or increments in the "
            "transaction that holds the progress.",
            "Keep what a batch must remember in Spark's state store, and keep the checkpoint with the job.",
            "Use event time and watermarks for windows, and keep columns that differ on a replay out of the result.",
        ),
        after={
            "upgrade": "Begin the new version without the old checkpoint, and overwrite its output by key; or read what the old "
            "version's state holds.",
        },
        sources=(
            "SPARK-49374, SPARK-51714: state overwritten by a stale attempt",
            "Jepsen's counter checker (jepsen.checker/counter)",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Reasoning about time",
        ),
    )
    rule = FORBIDDEN
    comes_with = {
        "diverged-replay": "its batch was replayed, and another attempt wrote other content",
        "commit-ahead-of-effect": "progress was recorded, and the right content never came",
        "torn-batch": "the rest of its batch is right",
        "sink-disagreement": "another output has the right row or record for the same input",
    }
    damages = (Damage(other_content, "other content"),)

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.differs or not case.number("SELECT count(*) FROM judge.remaining WHERE wrong > 0"):
            return
        case.sql(_WRONG)
        for (output,) in case.sql("SELECT DISTINCT output FROM wrong_values ORDER BY output").fetchall():
            if case.scenario.outputs[output].kind == "upsert":
                if not case.drained and (unfinished := len(case.sql(_UNFINISHED, {"output": output}).fetchall())):
                    yield Gap(
                        output,
                        f"{times(unfinished, noun(case, output))} {'differs' if unfinished == 1 else 'differ'}, but {behind(case)}",
                    )
                case.changes()
                case.sql(_STALE, {"output": output})
            if case.number("SELECT count(*) FROM wrong_values WHERE output = $output", {"output": output}):
                yield _finding(case, output)


def _finding(case: Case, output: str) -> Finding:
    direction = _direction(case, output)
    rows = case.rows(_TOTALS.format(output=literal(output), direction=direction))
    names = case.expectations[output].columns
    differing = ", ".join(
        f"CASE WHEN {_value('found', n)} IS DISTINCT FROM {_value('wanted', n)} THEN {literal(n)} END" for n in names
    )
    columns = case.sql(_COLUMNS.format(columns=differing, output=literal(output))).fetchall()
    named = ", ".join(sorted(column for (column,) in columns if column is not None))
    in_columns = f" in {named}" if named else ""
    summary = f"{counted(case, rows)} with wrong content{in_columns}: {', '.join(sums(rows, 'label'))}"
    witnesses = _WITNESSES.format(output=literal(output), direction=direction)
    return finding(case, "wrong-value", rows, summary, witnesses, _argument, placed=True)


def _value(side: str, column: str) -> str:
    return f"({side}->>{member(column)})"


def _direction(case: Case, output: str) -> str:
    """SQL for how ``found`` differs from ``wanted``: ``stale``, ``inflated``, ``deflated`` or ``different``."""
    above, below, differ = [], [], []
    for name, sql_type in case.expectations[output].columns.items():
        found, wanted = _value("found", name), _value("wanted", name)
        differ.append(f"({found} IS DISTINCT FROM {wanted})::INT")
        if _is_number(sql_type):
            # As decimals where the digits fit: two large integers may be the same double.
            exact = f"TRY_CAST({found} AS DECIMAL(38, 9)) - TRY_CAST({wanted} AS DECIMAL(38, 9))"
            off = f"coalesce(TRY({exact})::DOUBLE, TRY_CAST({found} AS DOUBLE) - TRY_CAST({wanted} AS DOUBLE), 0)"
            above.append(f"({off} > 0)::INT")
            below.append(f"({off} < 0)::INT")
    different = " + ".join(differ)
    return (
        f"CASE WHEN stale THEN 'stale' WHEN {different} = 0 THEN 'different' WHEN {' + '.join(above) or '0'} = {different} "
        f"THEN 'inflated' WHEN {' + '.join(below) or '0'} = {different} THEN 'deflated' ELSE 'different' END"
    )


def _is_number(sql_type: str) -> bool:
    kind = sql_type.split("(")[0].strip()
    return kind.endswith(("INT", "INTEGER")) or kind in {"DECIMAL", "FLOAT", "DOUBLE", "BIGNUM"}


def _argument(_case: Case, row: Row) -> str:
    wanted, found = json.loads(row["wanted"]), json.loads(row["found"])
    names = [name for name in wanted if wanted[name] != found[name]]
    overwritten = f"\nThe right content was at {row['overwritten_at']}, and was overwritten." if row["stale"] else ""
    return (
        f"{input_of(row)} is committed; expected: {named_values(names, wanted)}.{overwritten}\n"
        f"But found: {named_values(names, found)}{f' ({how})' if (how := row['direction']) != 'different' else ''}."
    )
