"""Handles late records and open windows: decides which rows are judged, and against which of two expectations.

Some late records may or may not count (`onceproof.oracle.contract.windows`). An identity is correct if it has the rows expected
without them, or the rows expected with them. If such records are in several batches, some might count and others not: any other
rows then make the run inconclusive. If all are in one batch, all count or none: an output with identities of both kinds makes the run
inconclusive.

The oracle's column ``_closes`` says when a row's window closes, for outputs that get the row only then. A window that closes
above the last committed watermark is *open*, and effects of its identity are not judged. Only a planned batch whose watermark closes
the window may have written them: any others make the run inconclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.judge.relations import expected
from onceproof.oracle.contract import windows
from onceproof.oracle.contract.inputs import View
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case


def admit(case: Case) -> None:
    """If late records may count, also expect what follows with them, until `settle` chooses."""
    # Committed input only: otherwise an aborted record that may count would make a window doubtful.
    if not any(case.inputs.late.get(f"may.{topic}") for topic in case.inputs.windows):
        return
    expected.again(case, "judge.expected_with_late", View(late=True))
    case.borderline = True
    listed = "SELECT output, id, list(content ORDER BY content) AS contents FROM {} GROUP BY ALL"
    case.sql(f"""CREATE TABLE judge.borderline AS
        SELECT output, id, coalesce(s.contents, []) AS strict, coalesce(l.contents, []) AS lenient
        FROM ({listed.format("judge.expected")}) s
        FULL JOIN ({listed.format("judge.expected_with_late")}) l USING (output, id)
        WHERE s.contents IS DISTINCT FROM l.contents""")  # noqa: S608
    case.sql(
        "CREATE TABLE judge.expected_strict AS FROM judge.expected e SEMI JOIN judge.borderline b USING (output, id)"
    )
    case.sql(
        "INSERT INTO judge.expected FROM judge.expected_with_late e SEMI JOIN judge.borderline b USING (output, id)"
    )


def settle(case: Case) -> None:
    """After the effects are loaded: choose between the two expectations, and exclude open windows from judging."""
    if case.closing & case.expectations.keys():
        _leave_open(case)
    if case.borderline:
        _choose(case)


# Effects of open windows that no planned batch closes.
_EARLY = """
    SELECT count(*) AS n, min(e.id) AS first FROM judge.effect_rows e
    JOIN (SELECT output, id, min(closes_us) AS closes_us FROM judge.open_windows GROUP BY ALL) o USING (output, id)
    WHERE e.output = $output AND o.closes_us > 1000::BIGINT * $planned
      AND NOT EXISTS (FROM judge.expected x WHERE x.output = e.output AND x.id = e.id)"""


def _leave_open(case: Case) -> None:
    expected.again(case, "judge.open_windows", still_open=True)
    for output in sorted(case.closing & case.expectations.keys()):
        case.notes[f"open.{output}"] = case.number(
            "SELECT count(*) FROM judge.open_windows WHERE output = $output", {"output": output}
        )
        planned = expected.last_watermark(case, output, committed=False)
        early = case.rows(_EARLY, {"output": output, "planned": planned})[0]
        if early["n"]:
            case.doubts.append(
                f"output {output} holds {times(early['n'], 'row')} of windows that no batch has closed, so they were not judged; the "
                f"first is {early['first']}: where rows are written before their window closes, leave out _closes"
            )
    case.sql("""DELETE FROM judge.effect_rows e
        WHERE EXISTS (FROM judge.open_windows o WHERE o.output = e.output AND o.id = e.id)
          AND NOT EXISTS (FROM judge.expected x WHERE x.output = e.output AND x.id = e.id)""")


# The effects found equal one of the two expectations, or several times one of them (duplicates), or there are none (a loss).
_CHOICE = """
    CREATE TABLE judge.choice AS
    WITH seen AS (
        SELECT output, id, list(content ORDER BY content) AS contents
        FROM judge.effect_rows SEMI JOIN judge.borderline USING (output, id) GROUP BY ALL)
    SELECT output, id,
           CASE WHEN found = strict THEN 'strict' WHEN found = lenient THEN 'lenient' WHEN len(found) = 0 THEN 'strict'
                WHEN list_sort(list_distinct(found)) = list_sort(list_distinct(strict)) THEN 'strict'
                WHEN list_sort(list_distinct(found)) = list_sort(list_distinct(lenient)) THEN 'lenient' END AS chosen,
           len(found) = 0 AND len(strict) > 0 AND len(lenient) > 0 AS lost
    FROM (SELECT b.*, coalesce(s.contents, []) AS found FROM judge.borderline b LEFT JOIN seen s USING (output, id))"""


# A lost row shows no choice.
_BOTH = """
    SELECT output, count(*) FILTER (chosen = 'lenient') AS counted, count(*) FILTER (chosen = 'strict') AS dropped,
           min(id) FILTER (chosen = 'lenient') AS one, min(id) FILTER (chosen = 'strict') AS other
    FROM judge.choice WHERE NOT lost GROUP BY output HAVING counted > 0 AND dropped > 0 ORDER BY output"""


def _choose(case: Case) -> None:
    case.sql(_CHOICE)
    case.sql("DELETE FROM judge.expected e USING judge.borderline b WHERE b.output = e.output AND b.id = e.id")
    if windows.batches_with_may(case.inputs.seen(), case.inputs.windows) > 1:
        _doubt(case)
    else:
        _doubt_both(case)
    case.sql("UPDATE judge.choice SET chosen = 'lenient' WHERE chosen IS NULL")
    for version, table in (("strict", "judge.expected_strict"), ("lenient", "judge.expected_with_late")):
        chosen = f"(FROM judge.choice WHERE chosen = '{version}')"
        case.sql(f"INSERT INTO judge.expected FROM {table} e SEMI JOIN {chosen} c USING (output, id)")
    unreadable = ", ".join(literal(output) for output in case.scenario.outputs if output not in case.expectations)
    if unreadable:
        case.sql(f"DELETE FROM judge.expected WHERE output IN ({unreadable})")  # noqa: S608


def _doubt(case: Case) -> None:
    """Do not judge identities that neither expectation explains: only some of the late records may have counted."""
    for row in case.rows(
        "SELECT output, count(*) AS n, min(id) AS first FROM judge.choice WHERE chosen IS NULL GROUP BY 1"
    ):
        case.doubts.append(
            f"output {row['output']}: {times(row['n'], 'identity')} can be explained neither with nor without the "
            f"records that came between two watermarks, in several batches; the first is {row['first']}"
        )
    case.sql("""DELETE FROM judge.effect_rows e USING judge.choice c
        WHERE c.chosen IS NULL AND c.output = e.output AND c.id = e.id""")
    case.sql("DELETE FROM judge.choice WHERE chosen IS NULL")


def _doubt_both(case: Case) -> None:
    """Report outputs that counted some of one batch's records and not others. Which of them is wrong is not known."""
    for row in case.rows(_BOTH):
        if row["output"] not in case.expectations:
            continue
        case.doubts.append(
            f"output {row['output']}: {times(row['counted'], 'identity')} can be explained only with the records that came between two "
            f"watermarks, such as {row['one']}, and {row['dropped']:,} only without them, such as {row['other']}; they are all in one "
            "batch, of which Spark counts all or none"
        )
