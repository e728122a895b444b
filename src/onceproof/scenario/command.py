"""A user's command line as a scenario's: addresses, checkpoints and files of theirs become templates, secrets go."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceproof.errors import UsageError
from onceproof.paths import is_file, is_folder
from onceproof.registry import suggest
from onceproof.scenario import templates

SECRET = "CHANGE-ME"  # noqa: S105 - stands where a secret was
_NOTE = "a secret is not written down: name its variable under secrets"
_ADDRESSES = re.compile(r"^[\w.-]+:\d{4,5}(,[\w.-]+:\d{4,5})*$")
#: As part of a name, in any spelling (PGPASSWORD, --dbpass, apiKey); not: passes, passengers, bypass, tokenizer.
_NAME_OF_ONE = (
    r"(?:(?<!by)(?<!com)pass(?!e[sdn]|ive|age|ing|[-_]?thr)|pwd|secret|token(?!i[sz])|credential"
    r"|(?:api|access|account|private).?key)"
)
_IS_SECRET = re.compile(_NAME_OF_ONE, re.IGNORECASE)
_HOLDS_SECRET = re.compile(
    # password=x, "password": "x", -Ddb.password=x; then --password x within one word, as for sh -c
    rf"{_NAME_OF_ONE}[\w.-]*[\"']?\s*[=:]|(?:^|\s)--?[\w.-]*{_NAME_OF_ONE}[\w.-]*\s+\S"
    # user:pass@ and token@ in an address, and Oracle's user/pass@; before the @ of abfss and wasbs stands a container
    r"|(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://[^\s/?#@]+@|://[^\s:/@]*:[^\s@]+@|\bjdbc:oracle:[^\s@/]+/[^\s@]+@"
    r"|\bbearer\s+\S",
    re.IGNORECASE,
)
_SETTING = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_LONG_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_ONE_TEMPLATE = re.compile(r"\{[^{}]*\}")
_DATABASE = {"postgres", "postgresql", "pg", "database", "db", "jdbc"}
_READS = {"input", "source", "in", "from", "read", "subscribe"}
_WRITES = {"output", "out", "sink", "target", "to", "write", "destination"}
_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")


@dataclass(frozen=True)
class Word:
    """One word of the command, or one variable's value, as the scenario has it. ``note`` says what it was."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Job:
    """The command and its variables, and what their options' names tell of topics and tables."""

    words: tuple[Word, ...]
    env: dict[str, Word]
    stem: str
    """What the job is called: its file's stem, or its program's."""
    topic: str | None = None
    output_topic: str | None = None
    table: str | None = None

    def uses(self, template: str) -> bool:
        """Whether ``template`` stands anywhere in it; one that ends in a dot stands for all that begin so."""
        texts = [word.text for word in (*self.words, *self.env.values())]
        found = {name for text in texts for name in templates.used(text)}
        return any(name == template or (template.endswith(".") and name.startswith(template)) for name in found)


def read(
    command: Sequence[str], env: Sequence[str], *, folder: Path, topic: str | None, output_topic: str | None = None
) -> Job:
    """``command`` as it would be typed in the current folder, ``env`` as NAME=VALUE, for a scenario in ``folder``.

    Raises `UsageError`: no command, a program or job file that is not there, a variable that is no NAME=VALUE.
    """
    if not command:
        hint = (
            "put it behind --, as you would type it: onceproof init --topic orders -- python job.py --kafka broker:9092"
        )
        raise UsageError("which command starts the job?", hint=hint)
    reader = _Reader(folder, topic, output_topic)
    words = [reader.program(command[0])]
    option = ""
    for word in command[1:]:
        if _IS_SECRET.search(option) and not _LONG_OPTION.fullmatch(word):
            words.append(reader.value(option, word))  # --password -x: what is no option for sure is the secret
            option = ""
        elif word.startswith("-D"):
            words.append(reader.as_it_is(word))
            option = ""
        elif word.startswith("-") and "=" in word:
            name, _, value = word.partition("=")
            words.append(reader.value(name, value, before=f"{name}="))
            option = ""
        elif word.startswith("-"):
            words.append(reader.as_it_is(word))
            option = word
        else:
            words.append(reader.value(option, word))
            option = ""
    return Job(
        tuple(words),
        dict(_variable(reader, text) for text in env),
        reader.stem or Path(command[0]).stem,
        reader.topic,
        reader.output_topic,
        reader.table,
    )


def _variable(reader: _Reader, text: str) -> tuple[str, Word]:
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, reader.value(name, value)


def _hidden(option: str, value: str) -> str | None:
    """What is written instead of a value that is or holds a secret; None where there is none.

    Rather one too many: whoever misses a value puts it back, a secret that is written down is out.
    """
    if _ONE_TEMPLATE.fullmatch(value) and templates.used(value):
        return None
    if _IS_SECRET.search(option):
        return SECRET
    setting = _SETTING.fullmatch(value)
    if setting is not None and (_IS_SECRET.search(setting[1]) or _HOLDS_SECRET.search(setting[2])):
        return f"{setting[1]}={SECRET}"
    return SECRET if _HOLDS_SECRET.search(value) else None


class _Reader:
    """Reads one word after the other, and keeps what their options' names tell."""

    def __init__(self, folder: Path, topic: str | None, output_topic: str | None) -> None:
        self._folder = folder
        self.topic = topic
        self.output_topic = output_topic
        self.table: str | None = None
        self.stem = ""

    def program(self, word: str) -> Word:
        if _PYTHON.match(word):
            return Word("{python}", f"was {word}: the Python that runs onceproof")
        if templates.used(word):
            return Word(word)
        if shutil.which(word) is None:
            hint = "give its path, or put its folder on PATH"
            if (Path(sys.executable).parent / word).is_file():  # spark-submit, where no environment is activated
                hint = f"it is in {Path(sys.executable).parent}: put that folder on PATH"
            if word.endswith(".py"):
                hint = f"a script is started by its interpreter: python {word}"
            raise UsageError(f"program {word!r} is not found", hint=hint)
        # A program named by a path, as in ./run.sh: the job runs in a folder of its own.
        return self._beside(word) if os.sep in word and not Path(word).is_absolute() else Word(word)

    def value(self, option: str, value: str, before: str = "") -> Word:
        """``value`` of ``option`` ("" where it has none), with ``before`` in front of it in the same word."""
        told = self._told({token for token in re.split(r"[^a-z0-9]+", option.lower()) if token}, option, value)
        return Word(before + told.text, told.note)

    def as_it_is(self, word: str) -> Word:
        """An option alone, or -Dname=value of a JVM: as it is, but for a secret."""
        name, equals, value = word.partition("=")
        secret = _hidden(name, value) if equals else _hidden("", word)
        return Word(word) if secret is None else Word(f"{name}={secret}" if equals else secret, _NOTE)

    def _told(self, tokens: set[str], option: str, value: str) -> Word:
        if value.startswith("jdbc:postgresql:"):
            return Word("{postgres.jdbc}", "was a JDBC URL of yours")
        if re.match(r"postgres(ql)?://", value):
            return Word("{postgres}", "was an address of yours")
        secret = _hidden(option, value)
        if secret is not None:
            return Word(secret, _NOTE)
        if templates.used(value):
            return Word(value)
        if any(token.startswith("checkpoint") for token in tokens):
            name = re.sub(r"[^\w.-]+", "-", Path(value).name) or "job"
            several = option.lower().rstrip("=").endswith("s")
            return Word("{checkpoint}" if several else f"{{checkpoint}}/{name}", "was a folder of yours")
        if _ADDRESSES.match(value) and not tokens & _DATABASE:
            return Word("{kafka}", f"was {value}")
        if "topic" in tokens or "topics" in tokens or tokens & {"subscribe"}:
            return self._topic(tokens, value)
        if value in (self.topic, self.output_topic):
            return Word(f"{{topic.{value}}}")
        if "table" in tokens or "dbtable" in tokens:
            self.table = self.table or value
        return self._file(value)

    def _topic(self, tokens: set[str], value: str) -> Word:
        if tokens & _WRITES and not tokens & _READS and value != self.topic:
            self.output_topic = self.output_topic or value
        elif self.topic is None:
            self.topic = value
        known = value in (self.topic, self.output_topic)
        return Word(f"{{topic.{value}}}" if known else value)

    def _file(self, value: str) -> Word:
        path = Path(value)
        if value.endswith(".py") and "://" not in value:
            if not is_file(path):
                near = sorted(entry.name for entry in path.parent.glob("*.py")) if is_folder(path.parent) else []
                hint = suggest(path.name, near) if near else f"there is no .py file in {path.parent.absolute()}"
                raise UsageError(f"job file {value!r} does not exist", hint=hint)
            self.stem = self.stem or path.stem
        return self._beside(value) if is_file(path) and not path.is_absolute() else Word(value)

    def _beside(self, value: str) -> Word:
        """A file of the current folder, by its way from the scenario's: the job runs in a folder of its own."""
        return Word("{here}/" + Path(os.path.relpath(value, self._folder)).as_posix())
