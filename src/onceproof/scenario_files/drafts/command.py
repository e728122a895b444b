"""Turns a user's command line into a scenario's: addresses, checkpoints and files become templates, secrets are removed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.paths import is_file, is_folder
from onceproof.base.registry import suggest
from onceproof.scenario import templates
from onceproof.scenario_files.drafts import meaning

#: Marks each comment that the user must decide on.
DECIDE = "DECIDE"
SECRET = "CHANGE-ME"  # noqa: S105 - the text that replaces a secret
_NOTE = "was a secret, which is not stored: name its variable under secrets"
_ADDRESSES = re.compile(r"^[\w.-]+:\d{4,5}(,[\w.-]+:\d{4,5})*$")
#: Part of the name of a secret, in any spelling (PGPASSWORD, --dbpass, apiKey); not: passes, passengers, bypass, tokenizer.
_NAME_OF_ONE = (
    r"(?:(?<!by)(?<!com)pass(?!e[sdn]|ive|age|ing|[-_]?thr)|pwd|secret|token(?!i[sz])|credential"
    r"|(?:api|access|account|private).?key)"
)
_IS_SECRET = re.compile(_NAME_OF_ONE, re.IGNORECASE)
_HOLDS_SECRET = re.compile(
    # password=x, "password": "x", -Ddb.password=x; then --password x in one word, as in sh -c
    rf"{_NAME_OF_ONE}[\w.-]*[\"']?\s*[=:]|(?:^|\s)--?[\w.-]*{_NAME_OF_ONE}[\w.-]*\s+\S"
    # user:pass@ and token@ in an address, and Oracle's user/pass@; in abfss and wasbs addresses a container precedes the @
    r"|(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://[^\s/?#@]+@|://[^\s:/@]*:[^\s@]+@|\bjdbc:oracle:[^\s@/]+/[^\s@]+@"
    r"|\bbearer\s+\S",
    re.IGNORECASE,
)
_SETTING = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_LONG_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_ONE_TEMPLATE = re.compile(r"\{[^{}]*\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")


@dataclass(frozen=True)
class Word:
    """One word of the command, or one variable's value, in the scenario."""

    text: str
    note: str = ""
    """What the word was before."""


@dataclass(frozen=True)
class Job:
    """The command and its variables, and the topics and tables that the names of options suggest."""

    words: tuple[Word, ...]
    env: dict[str, Word]
    stem: str
    """The job's name: the stem of its file, or of its program."""
    topics: tuple[str, ...] = ()
    """Topics that it reads. Like the next two fields: as the user named them, or as the names of options suggest."""
    output_topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    decide: tuple[str, ...] = ()
    """What only the user can decide about the words."""

    def uses(self, template: str) -> bool:
        """Whether the job uses ``template``; one that ends in a dot means any template that begins so."""
        texts = [word.text for word in (*self.words, *self.env.values())]
        found = {name for text in texts for name in templates.used(text)}
        return any(name == template or (template.endswith(".") and name.startswith(template)) for name in found)


def read(
    command: Sequence[str],
    env: Sequence[str],
    *,
    folder: Path,
    topics: Sequence[str] = (),
    output_topics: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> Job:
    """Read ``command``, as typed in the current folder, and ``env``, as NAME=VALUE, for a scenario in ``folder``.

    Variables may also precede the command, as in a shell, with or without the word ``env``.

    Raises `UsageError` for a missing command, a program or job file that does not exist, or a variable that is not NAME=VALUE.
    """
    assigned, command = _assignments(command)
    env = [*assigned, *env]
    if not command:
        hint = (
            "add it after --, as you would type it: onceproof init --topic orders -- python job.py --kafka broker:9092"
        )
        raise UsageError("the command that starts the job is missing", hint=hint)
    reader = _CommandReader(folder, topics, output_topics, tables)
    command = [command[0], *reader.without_packages(command[1:])]
    variables = dict(_variable(reader, text) for text in env)
    words = [reader.program(command[0])]
    option = ""
    for word in command[1:]:
        if _IS_SECRET.search(option) and not _LONG_OPTION.fullmatch(word):
            words.append(
                reader.value(option, word)
            )  # --password -x: a word that may not be an option is taken for the secret
            option = ""
        elif word.startswith("-D"):
            words.append(reader.unchanged(word))
            option = ""
        elif word.startswith("-") and "=" in word:
            name, _, value = word.partition("=")
            words.append(reader.value(name, value, before=f"{name}="))
            option = ""
        elif word.startswith("-"):
            words.append(reader.unchanged(word))
            option = word
        else:
            words.append(reader.value(option, word))
            option = ""
    return Job(
        tuple(words),
        variables,
        reader.stem or Path(command[0]).stem,
        tuple(reader.topics),
        tuple(reader.output_topics),
        tuple(reader.tables),
        tuple(dict.fromkeys(reader.decide)),
    )


def _assignments(command: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """The NAME=VALUE words before a command, and the command."""
    rest = list(command)
    if rest and Path(rest[0]).name == "env" and len(rest) > 1 and not rest[1].startswith("-"):
        rest = rest[1:]
    found = []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        found.append(rest.pop(0))
    return found, rest


def _variable(reader: _CommandReader, text: str) -> tuple[str, Word]:
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, reader.variable(name, value)


def _without_secret(option: str, value: str) -> str | None:
    """The replacement for a value that is or contains a secret; None if it does not.

    In doubt it replaces: the user can restore a value, but a secret in a file has leaked.
    """
    if _ONE_TEMPLATE.fullmatch(value) and templates.used(value):
        return None
    if _IS_SECRET.search(option):
        return SECRET
    setting = _SETTING.fullmatch(value)
    if setting is not None and (_IS_SECRET.search(setting[1]) or _HOLDS_SECRET.search(setting[2])):
        return f"{setting[1]}={SECRET}"
    return SECRET if _HOLDS_SECRET.search(value) else None


class _CommandReader:
    """Reads word after word, and collects the topics, tables and decisions that they suggest."""

    def __init__(
        self, folder: Path, topics: Sequence[str], output_topics: Sequence[str], tables: Sequence[str]
    ) -> None:
        self._folder = folder
        self._given = bool(topics), bool(output_topics), bool(tables)
        self.topics = list(topics)
        self.output_topics = list(output_topics)
        self.tables = list(tables)
        self.decide: list[str] = []
        self.stem = ""

    def without_packages(self, words: Sequence[str]) -> list[str]:
        """``words`` without the packages that a job has anyway: Spark would fetch them from the network at each start."""
        left = list(words)
        for index, listed in reversed(list(meaning.packages(words))):
            needed = meaning.needed_packages(listed)
            if needed:
                self.decide.append(
                    f"Spark fetches packages {', '.join(needed)} from the network at each start. "
                    "To run without a network, pass their jars: --jars {here}/lib/NAME.jar"
                )
                left[index] = left[index].replace(listed, ",".join(needed))
                continue
            separate = not left[index].startswith("-")  # the value follows its option: --packages X, --conf X
            del left[index - 1 if separate else index : index + 1]
        return left

    def variable(self, name: str, value: str) -> Word:
        """The value of one of the job's variables, which may be the password template."""
        if meaning.postgres_part(name) == "password":
            return Word("{postgres.password}", "filled in when the job starts, and never stored")
        return self.value(name, value)

    def program(self, word: str) -> Word:
        if _PYTHON.match(word):
            return Word("{python}", f"was {word}: the Python that runs onceproof")
        if templates.used(word):
            return Word(word)
        if shutil.which(word) is None:
            hint = "give its path, or put its folder on PATH"
            if (Path(sys.executable).parent / word).is_file():  # e.g. spark-submit, if no environment is activated
                hint = f"it is in {Path(sys.executable).parent}: put that folder on PATH"
            if word.endswith(".py"):
                hint = f"start a script with its interpreter: python {word}"
            raise UsageError(f"program {word!r} was not found", hint=hint)
        # A relative path, as in ./run.sh, needs {here}: the job runs in another folder.
        return self._below_here(word) if os.sep in word and not Path(word).is_absolute() else Word(word)

    def value(self, option: str, value: str, before: str = "") -> Word:
        """``value`` of ``option`` ("" if it has none), with ``before`` prepended in the same word."""
        word = self._templated(option, value)
        return Word(before + word.text, word.note)

    def unchanged(self, word: str) -> Word:
        """An option alone, or -Dname=value of a JVM: unchanged, except for a secret."""
        name, equals, value = word.partition("=")
        secret = _without_secret(name, value) if equals else _without_secret("", word)
        return Word(word) if secret is None else Word(f"{name}={secret}" if equals else secret, _NOTE)

    def _templated(self, option: str, value: str) -> Word:
        """``value`` with a template in place of an address, a checkpoint, a topic or a file, by what ``option`` is named."""
        if value.startswith("jdbc:postgresql:"):
            return Word("{postgres.jdbc}", "replaces your JDBC URL")
        if re.match(r"postgres(ql)?://", value):
            return Word("{postgres}", "replaces your address")
        if re.match(r"(?:host|dbname|user|port)=\S+(?:\s+\w+=\S*)+$", value):
            return Word("{postgres}", "replaces your connection string")
        part = meaning.postgres_part(option)
        secret = _without_secret(option, value)
        if secret is not None:
            if part == "password":
                self.decide.append(
                    f"{option} passes a password in the command, where every user of the machine can see it. "
                    'Can the job read it from a variable? env: {PGPASSWORD: "{postgres.password}"}'
                )
            return Word(secret, _NOTE)
        if templates.used(value):
            return Word(value)
        if part is not None:
            return self._postgres(option, part, value)
        if meaning.is_checkpoint(option):
            name = re.sub(r"[^\w.-]+", "-", Path(value).name) or "job"
            several = option.lower().rstrip("=").endswith(("s", "root", "base"))
            return Word("{checkpoint}" if several else f"{{checkpoint}}/{name}", "replaces your folder")
        if _ADDRESSES.match(value) or meaning.is_kafka_address(option):
            return Word("{kafka}", f"was {value}")
        if meaning.is_topic(option):
            return Word(",".join(self._topic(option, topic) for topic in value.split(",")))
        if value in (*self.topics, *self.output_topics):
            return Word(f"{{topic.{value}}}")
        if {"table", "dbtable", "tables"} & set(meaning.tokens(option)) and not self._given[2]:
            self.tables += [name for name in value.split(",") if name not in self.tables]
        return self._file(option, value)

    def _postgres(self, option: str, part: str, value: str) -> Word:
        """The template for one part of Postgres' address: its host, its user, ..."""
        if part == "url":
            return Word(
                "{postgres.jdbc}" if "jdbc" in meaning.tokens(option) else "{postgres}", "replaces your address"
            )
        if part == "host" and re.search(r":\d+$", value):
            return Word("{postgres.host}:{postgres.port}", f"was {value}")
        return Word(f"{{postgres.{part}}}", f"was {value}")

    def _topic(self, option: str, value: str) -> str:
        if value not in (*self.topics, *self.output_topics):
            if meaning.writes(option) and not meaning.reads(option):
                if not self._given[1]:
                    self.output_topics.append(value)
            elif not self._given[0]:
                self.topics.append(value)
        if value in (*self.topics, *self.output_topics):
            return f"{{topic.{value}}}"
        self.decide.append(
            f"nothing creates topic {value}, which {option} names. Does the job read it (--topic) or write it (--output-topic)?"
        )
        return value

    def _file(self, option: str, value: str) -> Word:
        jars = value.split(",")
        if value.endswith(".jar") and all(is_file(Path(jar)) for jar in jars):
            return Word(",".join(self._jar(jar) for jar in jars))
        path = Path(value)
        if value.endswith(".py") and "://" not in value:
            if not is_file(path):
                near = sorted(entry.name for entry in path.parent.glob("*.py")) if is_folder(path.parent) else []
                hint = suggest(path.name, near) if near else f"there is no .py file in {path.parent.absolute()}"
                raise UsageError(f"job file {value!r} does not exist", hint=hint)
            self.stem = self.stem or path.stem
        if is_file(path) and not path.is_absolute():
            return self._below_here(value)
        writes = meaning.writes(option) and "/" in value
        if not is_file(path) and (meaning.is_outside(value) or writes):
            self.decide.append(
                f"does the job write to {value}{f' ({option})' if option else ''}? If so, each run would find what the last one "
                "wrote: use a relative path (each run starts the job in a new folder) or one below {checkpoint}."
            )
            return Word(value, f"{DECIDE}: a path of this machine")
        return Word(value)

    def _jar(self, jar: str) -> str:
        if re.match(r"postgresql-[\d.]+\.jar$", Path(jar).name):
            return "{postgres.driver}"
        return self._below_here(jar).text if not Path(jar).is_absolute() else jar

    def _below_here(self, value: str) -> Word:
        """A file of the current folder, by its path relative to the scenario's folder: the job runs in another folder."""
        return Word("{here}/" + Path(os.path.relpath(value, self._folder)).as_posix())
