"""What one anomaly brings along: where the left one is found, those on the right may be found of the same history too.

Anomalies say what is wrong from different sides, so one broken write often has several names. This table is all that may
come together; the tests damage right histories in one way at a time and let nothing pass that is not listed here.
``docs/implications.md`` shows it to users.
"""

from __future__ import annotations

#: Anomaly -> what it may bring along -> why.
IMPLIES: dict[str, dict[str, str]] = {
    "lost-write": {
        "torn-batch": "the rest of its batch is visible",
        "sink-disagreement": "another output has its effect of the same input",
        "commit-ahead-of-effect": "progress was recorded, and the effect never came",
    },
    "stale-tail": {
        "wrong-value": "an upsert shows the state that recorded progress has reached, and not the last one",
        "sink-disagreement": "another output got further",
        "torn-batch": "the last batch was under way",
    },
    "duplicate": {
        "torn-batch": "the copy is in another commit than the rest of its batch",
        "zombie-write": "the copy was written by an older start of the driver than what precedes it",
        "commit-ahead-of-effect": "the copy came after progress was recorded",
        "sink-disagreement": "another output holds fewer copies of its effect of the same input",
    },
    "wrong-value": {
        "diverged-replay": "its batch was replayed, and another attempt wrote other content",
        "commit-ahead-of-effect": "progress was recorded, and the right content never came",
        "torn-batch": "the rest of its batch is right",
        "sink-disagreement": "another output has the right effect of the same input",
    },
    "diverged-replay": {
        "wrong-value": "the other content stayed",
        "duplicate": "both contents were expected of the identity, and one of them is there twice",
        "sink-disagreement": "one of the contents is there twice, and another output holds fewer copies",
        "torn-batch": "both attempts at the batch were committed",
        "zombie-write": "the older attempt landed last",
    },
    "torn-batch": {
        "lost-write": "the part of the batch that is not there is lost",
        "sink-disagreement": "another output has the whole batch",
        "commit-ahead-of-effect": "progress was recorded, and part of the batch was not there yet",
        "reordered": "a part of the batch came after effects of a later one",
    },
    "reordered": {
        "torn-batch": "an effect that moved is in the commit of another batch",
        "zombie-write": "an effect of an older start comes after one of a newer start",
        "commit-ahead-of-effect": "an effect that moved came after its batch was recorded as done",
        "diverged-replay": "an attempt that was aborted had the right order",
        "precommitted-read": "an effect that moved forward can be read before its input's transaction ended",
    },
    "aborted-read": {
        "diverged-replay": "another attempt did not read the aborted record",
        "commit-ahead-of-effect": "progress was recorded, and the right content never came",
        "torn-batch": "the effect is in another commit than the rest of its batch",
        "sink-disagreement": "another output has the right effect of the same input",
    },
    "precommitted-read": {
        "aborted-read": "of several uncommitted records, some were aborted in the end",
    },
    "unexplained": {
        "diverged-replay": "another attempt did not write it",
    },
    "misplaced": {
        "torn-batch": "the rest of its batch is where it should be",
        "sink-disagreement": "another output has its effect of the same input in the right place",
        "commit-ahead-of-effect": "progress was recorded, and the effect never came to where it is due",
        "reordered": "in the wrong partition it comes after later ones of its scope",
        "wrong-value": "of an upsert, an older state is where the last one should be",
        "diverged-replay": "another attempt wrote it to its place",
    },
    "zombie-write": {
        "duplicate": "what the older start wrote is there in addition to what its successor wrote",
        "sink-disagreement": "another output holds fewer copies of its effect of the same input",
        "wrong-value": "what the older start wrote is there instead of what its successor wrote",
        "torn-batch": "the batch was written by both",
        "commit-ahead-of-effect": "it came after progress was recorded",
        "reordered": "it comes after effects of later input",
        "diverged-replay": "the two wrote different content",
    },
    "commit-ahead-of-effect": {
        "lost-write": "the effect never came",
        "torn-batch": "a part of the batch came later",
        "sink-disagreement": "another output has the effect",
    },
    "sink-disagreement": {
        "lost-write": "the effect that one output lacks is missing there",
        "torn-batch": "the rest of its batch is visible",
        "commit-ahead-of-effect": "progress was recorded, and the effect never came",
    },
    "hanging-transaction": {
        "wrong-value": "of an upsert, an older state is the last that can be read",
        "torn-batch": "the rest of its batch can be read",
        "sink-disagreement": "another output has its effect of the same input",
        "commit-ahead-of-effect": "progress was recorded, and the effect cannot be read",
    },
    "input-lost": {
        "unexplained": "the job had read the record before the broker lost it",
        "wrong-value": "a sum or a state holds what the job had read before the broker lost it",
    },
}


def table() -> str:
    """All of it in Markdown, for ``docs/implications.md``."""
    rows = [f"| `{one}` | `{other}` | {why} |" for one, others in IMPLIES.items() for other, why in others.items()]
    return "\n".join(["| found | may come with | because |", "| --- | --- | --- |", *rows])
