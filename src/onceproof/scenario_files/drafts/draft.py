"""Writes a first scenario for a user's job: it validates, and its comments list what only the user can decide."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import duckdb
from jinja2 import Environment, PackageLoader, StrictUndefined

from onceproof.scenario_files.created_tables import CreatedTable, created_tables, folded
from onceproof.scenario_files.drafts.command import DECIDE, SECRET, Job, Word
from onceproof.scenario_files.drafts.sample import Sample
from onceproof.values.canonical import quote

_PLAIN = re.compile(r"^[A-Za-z_{][\w.{}/-]*$")
#: A word of the command that needs no quotes in a block list, where braces have no meaning.
_BARE_WORD = re.compile(r"^--?[A-Za-z][\w.,=/{}@+-]*$")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
#: Fields of the data set `numbers`, which is fed if there is no sample.
_NUMBERS = {"id": "bigint", "key": "text", "seq": "bigint", "payload": "text"}
#: Columns with the position of a record -> how the oracle names it.
_POSITION = {"src_partition": "_partition", "src_offset": "_offset"}
_CHUNKS = 6
#: Next to the scenario; the first line names it, for editors.
SCHEMA_FILE = "onceproof.schema.json"


@dataclass(frozen=True)
class Fed:
    """A topic that the job reads, and the sample that it is fed with; generated records if there is none."""

    topic: str
    sample: Sample | None

    @property
    def chunks(self) -> int:
        return _CHUNKS if self.sample is None else min(_CHUNKS, self.sample.rows)


@dataclass(frozen=True)
class Output:
    """An output of the job, as it is proposed."""

    name: str
    where: str
    """The setting that locates it."""
    identity: tuple[str, ...] = ()
    """Its columns; empty if nothing identifies a row but the record's position."""
    kind: str = "append"
    key: tuple[str, ...] = ()
    """The table's primary key, if it has no column for the proposed identity."""
    ignore: tuple[str, ...] = ()
    """Columns that the database fills in with a time or a number."""

    @property
    def _given(self) -> dict[str, str]:
        return {name: _sql(name) for name in self.identity} or _POSITION

    @property
    def columns(self) -> str:
        """The identity as the oracle `identity` gives it: columns and expressions."""
        return ", ".join(f"{scalar(name)}: {scalar(expression)}" for name, expression in self._given.items())

    @property
    def query(self) -> str:
        """The identity as the oracle `sql` gives it: the columns of a SELECT."""
        selected = [text if name in self.identity else f"{text} AS {name}" for name, text in self._given.items()]
        if self.kind == "upsert":
            return f"DISTINCT {', '.join(selected)}"
        return ", ".join([*selected, "_topic", "_partition", "_offset", "_key"])


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
    def outputs(self) -> list[Output]:
        created = {table.name: table for table in created_tables(self.schema)}
        tables = [self._table(table, created.get(folded(table))) for table in self.tables]
        topics = [
            Output(_name(topic, "topic"), f"topic: {scalar(topic)}", self.identity) for topic in self.output_topics
        ]
        return list({output.name: output for output in (*tables, *topics)}.values())

    def _table(self, table: str, created: CreatedTable | None) -> Output:
        output = Output(_name(table, "table"), f"table: {scalar(table)}", self.identity)
        if created is None:
            return output
        key = set(created.key)
        if key and not key <= set(self.identity):
            if key <= set(self.fields):
                by_record = self.identity and set(self.identity) <= key
                output = replace(output, identity=created.key, kind="append" if by_record else "upsert")
            elif not set(self.identity) <= set(created.columns):
                # With the records' identity the output is not judged until the user corrects it; a guess would be judged wrongly.
                output = replace(output, key=created.key)
        return replace(output, ignore=tuple(name for name in created.varying if name not in output.identity))

    @property
    def by_key(self) -> bool:
        """Whether some output has a row for several records, which the oracle `identity` cannot express."""
        return any(output.kind == "upsert" for output in self.outputs)

    @property
    def by_record(self) -> bool:
        """Whether some output's identity is that of the records."""
        return any(output.identity == self.identity for output in self.outputs)

    @property
    def batches(self) -> int:
        return max(fed.chunks for fed in self.inputs)

    @property
    def uses_postgres(self) -> bool:
        return self.job.uses("postgres") or self.job.uses("postgres.")

    @property
    def has_secret(self) -> bool:
        return any(word.text.endswith(SECRET) for word in (*self.job.words, *self.job.env.values()))

    @property
    def selected(self) -> str:
        """The columns of a query that gives whole rows."""
        return ", ".join([*(_one_line(_sql(name)) for name in self.fields), "_topic", "_partition", "_offset", "_key"])

    @property
    def renamed(self) -> str:
        pairs = self.sample.renamed.items() if self.sample else ()
        return ", ".join(f"{_one_line(name)} is {_one_line(column)}" for name, column in pairs)

    def here(self, file: Path) -> str:
        """The path of a file, relative to the scenario's folder."""
        return "{here}/" + Path(os.path.relpath(file, self.file.parent)).as_posix()


def text(draft: Draft) -> str:
    """The text of the scenario file."""
    environment = Environment(
        loader=PackageLoader("onceproof.scenario_files.drafts", "."),
        autoescape=False,  # noqa: S701 - the template is YAML: its filters quote what users named
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        trim_blocks=True,
    )
    environment.filters |= {"scalar": scalar, "word": _word, "one_line": _one_line, "column": _column, "sql": _sql}
    template = environment.get_template("scenario.yaml.jinja")
    return template.render(draft=draft, schema_file=SCHEMA_FILE, DECIDE=DECIDE, SECRET=SECRET)


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


@cache
def _reserved() -> frozenset[str]:
    """The reserved words of DuckDB's SQL. Kept: opening a database takes much longer than the query."""
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    with duckdb.connect() as db:
        return frozenset(name for (name,) in db.execute(query).fetchall())
