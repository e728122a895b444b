"""Writes a first scenario for a user's job: it validates, and its comments list what only the user can decide."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import duckdb

from onceproof.scenario_files.drafts.command import DECIDE, SECRET, Job, Word
from onceproof.scenario_files.drafts.sample import Sample
from onceproof.values.canonical import quote

_PLAIN = re.compile(r"^[A-Za-z_{][\w.{}/-]*$")
#: A word of the command that needs no quotes in a block list, where braces have no meaning.
_BARE_WORD = re.compile(r"^--?[A-Za-z][\w.,=/{}@+-]*$")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
#: Fields of the data set `numbers`, which is fed if there is no sample.
_NUMBERS = {"id": "bigint", "key": "text", "seq": "bigint", "payload": "text"}
_CHUNKS = 6
#: Next to the scenario; the first line names it, for editors.
SCHEMA_FILE = "onceproof.schema.json"


@dataclass(frozen=True)
class Fed:
    """A topic that the job reads, and the sample that it is fed with; generated records if there is none."""

    topic: str
    sample: Sample | None


@dataclass(frozen=True)
class Draft:
    """What is known of the job."""

    job: Job
    file: Path
    inputs: tuple[Fed, ...]
    output_topics: tuple[str, ...]
    tables: tuple[str, ...]
    schema: str = ""
    """SQL statements that create the tables."""
    guessed: frozenset[str] = frozenset()
    """``topic`` and ``output``, if neither the command nor an option names one."""

    @property
    def sample(self) -> Sample | None:
        """The first topic's sample, from which identities are proposed."""
        return self.inputs[0].sample

    @property
    def fields(self) -> dict[str, str]:
        return self.sample.fields if self.sample else _NUMBERS

    @property
    def identity(self) -> tuple[str, ...]:
        return self.sample.identity if self.sample else ("id",)

    @property
    def outputs(self) -> dict[str, str]:
        """Name of each output -> the setting that locates it."""
        found = {}
        for table in self.tables:
            found[_name(table, "table")] = f"table: {scalar(table)}"
        for topic in self.output_topics:
            found[_name(topic, "topic")] = f"topic: {scalar(topic)}"
        return found


def text(draft: Draft) -> str:
    """The text of the scenario file."""
    parts = [_head(draft), _stack(draft), _input(draft), _pipeline(draft), _chaos(draft), _outputs(draft)]
    return "\n".join([*parts, _oracle(draft), _claim(draft)])


def decisions(drafted: str) -> list[str]:
    """The comments that begin with `DECIDE`, each joined to one line."""
    found: list[str] = []
    continues = False
    for line in drafted.splitlines():
        words = line.strip()
        if words.startswith(f"# {DECIDE}: "):
            found.append(words.removeprefix(f"# {DECIDE}: "))
            continues = True
        elif continues and words.startswith("#   "):
            found[-1] += " " + words.removeprefix("#").strip()
        else:
            continues = False
    return found


def scalar(value: str) -> str:
    """``value`` as a YAML scalar: bare if YAML reads that as the same text, else in double quotes, as JSON writes them."""
    bare = _PLAIN.match(value) and "{" not in value and value.lower() not in _YAML_WORDS
    return value if bare else json.dumps(value, ensure_ascii=False)


def _head(draft: Draft) -> str:
    name = draft.file.name
    return f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# Written by `onceproof init`. It is valid already; {DECIDE} marks what only you can know.
#   onceproof validate {name}    show every problem, with its line
#   onceproof plan {name}        show what a run would do, and how exactly its faults can be placed
#   onceproof run {name}         run it; first with `chaos: []`, to see whether the job works without faults
about: {scalar(f"{draft.job.stem}: what it does, in a sentence or two")}
"""


def _stack(draft: Draft) -> str:
    lines = ["stack:", "  kafka: {brokers: 1}  # 3, if faults are to crash brokers or cut them off"]
    if draft.tables or draft.schema or draft.job.uses("postgres") or draft.job.uses("postgres."):
        lines.append("  postgres: {}")
    return "\n".join(lines) + "\n"


def _input(draft: Draft) -> str:
    lines = ["input:"]
    if "topic" in draft.guessed:
        lines.append(f"  # {DECIDE}: which topic does the job read? The command does not show it.")
    for fed in draft.inputs:
        lines += [
            f"  - topic: {scalar(fed.topic)}",
            *(_generated() if fed.sample is None else _sampled(draft, fed.sample)),
        ]
        lines += [
            "    partitions: 3",
            f"    chunks: {_chunks(fed)}  # each is fed after the job has committed the previous one: about one batch each",
        ]
    return "\n".join(lines) + "\n"


def _chunks(fed: Fed) -> int:
    return _CHUNKS if fed.sample is None else min(_CHUNKS, fed.sample.rows)


def _generated() -> list[str]:
    return [
        f"    # {DECIDE}: these are generated records with id, key, seq and payload. Can the job read them? If not, use your own:",
        '    #   dataset: file, options: {file: "{here}/records.jsonl"}, a few hundred records, one JSON object per line.',
        "    dataset: numbers",
        "    rows: 6000",
    ]


def _sampled(draft: Draft, sample: Sample) -> list[str]:
    lines = ["    dataset: file"]
    file = scalar("{here}/" + Path(os.path.relpath(sample.file, draft.file.parent)).as_posix())
    if sample.records:
        lines.append(f"    options: {{file: {file}, form: records}}")
    elif sample.key is None:
        lines += [
            f"    # {DECIDE}: which field is the key of the topic's records? No field looks like one, and without a key no order",
            "    #   per key can be checked. To name one: options: {file: ..., key: FIELD}",
            f"    options: {{file: {file}, form: values}}",
        ]
    else:
        lines += [
            f"    # {DECIDE}: is {_one_line(sample.key)} the key of the topic's records? It is named like one, and several records share a value.",
            f"    options: {{file: {file}, form: values, key: {scalar(sample.key)}}}",
        ]
    if sample.rows < 100:
        lines.append(f"    # {sample.rows} records make small batches; a few hundred would show more.")
    return lines


def _pipeline(draft: Draft) -> str:
    lines = [
        "pipeline:",
        "  # Templates: {kafka} {postgres} {postgres.jdbc} {checkpoint} {topic.NAME} {here} {python};",
        "  #   {postgres.host} .port .user .database, in env {postgres.password}. Spark's Kafka connector and Postgres' JDBC driver",
        "  #   are on the class path: the job needs no --packages. If it must name the driver's jar: {postgres.driver}.",
    ]
    lines += ["  command:", *(f"    - {_word(word)}" for word in draft.job.words)]
    if draft.job.env:
        lines += ["  env:", *(f"    {name}: {_word(word)}" for name, word in draft.job.env.items())]
    else:
        lines.append('  # env: {NAME: "{kafka}"}  # variables of the job; it gets only a few of your shell\'s')
    if not draft.job.uses("kafka"):
        lines += _decide("how does the job get Kafka's address? Pass {kafka} in an argument or a variable.")
    if draft.tables and not (draft.job.uses("postgres") or draft.job.uses("postgres.")):
        lines += _decide("how does the job get Postgres' address? Pass {postgres} (libpq) or {postgres.jdbc}.")
    if not draft.job.uses("checkpoint"):
        lines += _decide(
            "where is the job's checkpoint? Pass a folder below {checkpoint}: onceproof places faults by what the job writes",
            "there, and without one no run can be held.",
        )
    for text in draft.job.decide:
        lines += _decide(_one_line(text))
    if any(word.text.endswith(SECRET) for word in (*draft.job.words, *draft.job.env.values())):
        lines += _decide(f"{SECRET} replaces a secret. Kafka needs none in a run; PGPASSFILE holds Postgres' password.")
        lines.append(
            "  # secrets: [NAME]  # variables that the job gets from your shell; their values are never stored"
        )
    return "\n".join([*lines, *_prepare(draft)]) + "\n"


def _prepare(draft: Draft) -> list[str]:
    lines = ["  prepare:"] if draft.output_topics or draft.schema else []
    if draft.output_topics:
        lines += ["    topics:", *(f"      {scalar(topic)}: {{partitions: 3}}" for topic in draft.output_topics)]
    if draft.schema:
        return [*lines, "    sql: |", *(f"      {line}".rstrip() for line in draft.schema.strip().splitlines())]
    for number, table in enumerate(draft.tables):
        lines += _decide(
            f"must table {_one_line(table)} exist before the job starts? If so, create it here with its own types",
            "(or: onceproof init --schema FILE.sql).",
        )
        if number == 0:
            lines += [*([] if draft.output_topics else ["  # prepare:"]), "  #   sql: |"]
        lines.append(f"  #     CREATE TABLE {_column(table)} (")
        columns = [f"  #       {_column(name)} {kind}" for name, kind in draft.fields.items()]
        lines += [*(f"{column}," for column in columns[:-1]), *columns[-1:], "  #     );"]
    return lines


def _chaos(draft: Draft) -> str:
    batches = max(map(_chunks, draft.inputs))
    if batches < 2:
        return "# One record makes only one batch. With more records, add a fault here (onceproof list faults).\nchaos: []\n"
    return f"""\
# The fault that shows most: the sink has committed the batch, but Spark has not recorded that and will replay it.
chaos:
  - {{fault: crash, target: driver, at: {{batch: {min(2, batches - 1)}, point: after-sink-commit}}}}
"""


def _outputs(draft: Draft) -> str:
    lines = ["outputs:"]
    if "output" in draft.guessed:
        lines.append(
            f"  # {DECIDE}: where does the job write? The command does not show it. Use topic: NAME or table: NAME."
        )
    lines.append(f"  # {DECIDE}: append (each row counts), upsert (the last state of an identity) or changelog?")
    if draft.identity:
        names = _one_line(", ".join(draft.identity))
        why = "no two records of the sample share it" if draft.sample else "the generated records have it"
        lines.append(
            f"  # {DECIDE}: which columns identify one row? The proposal is {names}: {why}. Does the output have it?"
        )
    else:
        lines += [
            f"  # {DECIDE}: which columns identify one row? No three fields of the sample identify a record. The proposal is the",
            "  #   record's position, if the job writes it.",
        ]
    identity = ", ".join(scalar(name) for name in draft.identity or ("src_partition", "src_offset"))
    for name, where in draft.outputs.items():
        lines += [f"  {name}:", f"    {where}", "    kind: append", f"    identity: [{identity}]"]
        lines.append("    # ignore: [loaded_at]  # columns that may differ on a replay: load times, generated ids")
    return "\n".join(lines) + "\n"


def _oracle(draft: Draft) -> str:
    lines = ["# Expects exactly one row for each input record, with its identity. Other columns are not compared."]
    lines += ["oracle:", "  kind: identity"]
    if len(draft.inputs) > 1:
        lines.append(f"  # {DECIDE}: the records of which topic cause the rows of the outputs?")
        lines.append(f"  topic: {scalar(draft.inputs[0].topic)}")
    lines.append("  columns:")
    if draft.identity:
        columns = ", ".join(f"{scalar(name)}: {scalar(_sql(name))}" for name in draft.identity)
    else:
        columns = "src_partition: _partition, src_offset: _offset"
    lines += [f"    {name}: {{{columns}}}" for name in draft.outputs]
    lines.append(
        f"  # {DECIDE}: does the job drop records? If so, write which ones it keeps, in SQL over the record's fields."
    )
    lines += ["  # where:", *(f"  #   {name}: status <> 'test'" for name in draft.outputs)]
    lines += [
        "  # To compare whole rows, use kind sql: one query (DuckDB) per output that returns the rows that it must hold:",
        "  # kind: sql",
        "  # queries:",
    ]
    if draft.sample is not None and draft.sample.renamed:
        pairs = ", ".join(f"{_one_line(name)} is {_one_line(column)}" for name, column in draft.sample.renamed.items())
        lines += [
            f"  # Fields whose names differ only by case are separate columns here, in outputs too: {pairs}.",
            "  # (To Spark they are one, unless the job sets spark.sql.caseSensitive=true or uses get_json_object.)",
        ]
    fields = ", ".join([*(_one_line(_sql(name)) for name in draft.fields), "_topic", "_partition", "_offset", "_key"])
    for name in draft.outputs:
        lines += [f"  #   {name}: |", f"  #     SELECT {fields}"]
        lines.append(f"  #     FROM {_sql(draft.inputs[0].topic)}")
    return "\n".join(lines) + "\n"


def _claim(draft: Draft) -> str:
    return f"""\
# {DECIDE}: what must the job guarantee? delivery: effectively-once, at-least-once or at-most-once;
#   order: per-key, per-partition or none; atomic: batch, transaction or none.
claim: {{delivery: effectively-once, order: none}}
"""


def _decide(first: str, *more: str) -> list[str]:
    return [f"  # {DECIDE}: {first}", *(f"  #   {line}" for line in more)]


def _word(word: Word) -> str:
    text = word.text if _BARE_WORD.match(word.text) else scalar(word.text)
    return f"{text}  # {_one_line(word.note)}" if word.note else text


def _name(place: str, kind: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', place).strip('_') or 'output'}_{kind}"


def _one_line(text: str) -> str:
    """The user's ``text`` on one line, so that it fits in a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _sql(name: str) -> str:
    """A field's name in DuckDB's SQL, quoted only if necessary."""
    return name if re.match(r"^[A-Za-z_]\w*$", name, re.ASCII) and name.lower() not in _reserved() else quote(name)


def _column(name: str) -> str:
    """A column's or table's name for a Postgres statement inside a comment."""
    plain = ".".join(part if re.match(r"^[a-z_][a-z0-9_]*$", part) else quote(part) for part in name.split("."))
    return _one_line(plain if name.lower() not in _reserved() else quote(name))


def _reserved() -> set[str]:
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    with duckdb.connect() as db:
        return {name for (name,) in db.execute(query).fetchall()}
