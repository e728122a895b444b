"""Finds out why a job failed, from the end of its log: the cause first, in a few lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten

_MOST = 4
_WIDTH = 300

_TRACEBACK = "Traceback (most recent call last)"
#: The first line of a Java exception: alone, as a cause, or after Py4J's own line. Its message may be empty.
_JAVA = re.compile(r"^(?:Caused by: |: )?((?:[a-z][\w$]*\.)+[\w$]*(?:Exception|Error|Throwable)\b(?::.*)?)$")
#: The last line of a traceback.
_PYTHON = re.compile(r"^[A-Za-z_][\w.]*(?::.*)?$")
#: Exceptions that only wrap another one. They are shown only if there are no others.
_WRAPPERS = re.compile(
    r"^(?:\S*\.)?(?:Py4JJavaError|Py4JException|Py4JNetworkError|StreamingQueryException|ForeachBatchUserFuncException|SparkException"
    r"|ExecutionException|UndeclaredThrowableException|InvocationTargetException)\b"
)
#: ``localhost:5432``; libpq's ``at "localhost" (::1), port 5432``; Kafka's ``(localhost/127.0.0.1:9092)``.
_ADDRESSES = (
    re.compile(r"(?<![\w./:-])([A-Za-z][\w.-]*|\d{1,3}(?:\.\d{1,3}){3}):(\d{2,5})\b"),
    re.compile(r'server at "([^"]+)"(?: \([^)]*\))?, port (\d+)'),
    re.compile(r"\(([\w.-]+)/[\d.]*:(\d+)\)"),
)
#: Log4j's lines of Spark below ERROR, and what precedes them.
_CHATTER = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:TRACE|DEBUG|INFO|WARN) |WARNING: |Setting default log level to|To adjust logging level use"
    r"|Using Spark's default log4j profile|Picked up \w+_OPTIONS|:: |\s*$"
)
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_CONNECTING = re.compile(
    r"refused|could not be established|could not translate|unknown ?host|unresolved|timed out|not be resolved", re.I
)


def causes(log: str) -> list[str]:
    """The last exceptions in a log, the deepest first: at most four, each on one line. Empty if there is none."""
    found: list[str] = []
    in_traceback = False
    for row in log.splitlines():
        if _TRACEBACK in row:
            in_traceback = True
        elif in_traceback and _PYTHON.match(row) is not None:
            in_traceback = False
            found.append(row)
        elif not in_traceback and (java := _JAVA.match(row)) is not None:
            found.append(java[1])
    found = [shorten(row, _WIDTH, placeholder=" ...") for row in found]
    last = list(dict.fromkeys(reversed(found)))  # each layer that an exception passes often logs it again
    unwrapped = [row for row in last if not _WRAPPERS.match(row)]
    return (unwrapped or last)[:_MOST]


def missing_module(found: Iterable[str], program: str | None) -> str | None:
    """What to do about a module that the job's Python lacks. ``program``: the first word of its command; None in an image."""
    module = next((match[1] for match in map(_NO_MODULE.search, found) if match is not None), None)
    if module is None:
        return None
    if program is None:
        return f"the job's image has no module {module}: install it there"
    if program == sys.executable:
        return f"{{python}} is {sys.executable}, which has no module {module}: install it there"
    if not Path(program).name.startswith("python"):
        return f"the Python that {program} uses has no module {module}: install it there"
    return (
        f"the job ran with {program}, which has no module {module}: install it there, or begin the command with {{python}}, "
        f"the Python that runs onceproof ({sys.executable})"
    )


def worth_showing(log: str, most: int) -> str:
    """The last lines of a log, without what Spark and the JVM write in every run: warnings without an exception, and greetings."""
    rows = log.splitlines()
    said = [
        row
        for row, following in zip(rows, [*rows[1:], ""], strict=False)  # an empty log has no rows
        if not _CHATTER.match(row) or _JAVA.match(following) or following.startswith(("\t", _TRACEBACK))
    ]
    return "\n".join(said[-most:])


def foreign_address(log: str, own: Iterable[str]) -> str | None:
    """The first ``host:port`` that the job could not reach and that is not in ``own`` (texts with the run's own addresses)."""
    ours = " ".join(own)
    for row in log.splitlines():
        if not _CONNECTING.search(row):
            continue
        for pattern in _ADDRESSES:
            for host, port in pattern.findall(row):
                if f":{port}" not in ours:
                    return f"{host}:{port}"
    return None
