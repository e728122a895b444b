"""What the server answers: the index, the state of runs in progress, and the page, logs and witnesses of each run.

A run may come from anyone. So only files with these names are read, none of them through a link. A stored page is sent only if it
begins as pages of this version do; otherwise the page is rendered from the run, as for a run without one. Every answer has a policy
that lets it run no script but ours. Logs are plain text.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, unquote_to_bytes

from onceproof.base.errors import OnceproofError
from onceproof.history import run_files
from onceproof.judge.witness_files import FOLDER as WITNESSES
from onceproof.qualify import page as qualification_page
from onceproof.qualify.directory import FILE as QUALIFICATION
from onceproof.qualify.directory import Directory
from onceproof.reports.html import page
from onceproof.reports.html.files import FILE as PAGE
from onceproof.reports.html.run_page import of_run
from onceproof.reports.html.source import LOGS
from onceproof.serve.index import MOST_ROWS, VERDICTS, Index, Row, Wanted, digest, scenarios

_HTML, _TEXT, _JSON = "text/html; charset=utf-8", "text/plain; charset=utf-8", "application/json"
_ALONE = "frame-ancestors 'none'"
#: For everything that comes from a run. The sandbox makes it another site, which cannot read the rest of the server.
_FOREIGN = f"default-src 'none'; {_ALONE}; sandbox"
#: A larger stored page is not one of ours.
_MOST_BYTES = 4 * 2**20
_MOST_FIELDS = 10


@dataclass(frozen=True)
class Answer:
    status: int
    kind: str
    """Its Content-Type."""
    policy: str
    """Its Content-Security-Policy."""
    body: bytes | BinaryIO
    """A file is closed by the reader."""


class Site:
    """The answers about one folder of runs. Safe from any thread."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._index = Index(runs_dir)
        self._rendering = threading.Semaphore(2)
        """A page of a large run takes seconds."""

    def answer(self, target: str) -> Answer:
        """``target``: the path of the request, with its query."""
        path, _, query = target.partition("?")
        try:
            if path == "/":
                return self._list(query)
            if path == "/state.json":
                return self._state()
            root, *names = [os.fsdecode(unquote_to_bytes(name)) for name in path.split("/")][1:]
            return self._file(names) if root == "runs" else _no_such_page()
        except (FileNotFoundError, NotADirectoryError):
            return _no_such_page()
        except OnceproofError as error:
            return message(403, f"This cannot be shown: {error}")
        except (OSError, ValueError) as error:
            return message(404, f"This cannot be read: {error}")

    def _list(self, query: str) -> Answer:
        fields = parse_qs(query, max_num_fields=_MOST_FIELDS, errors="replace")
        wanted = Wanted(*(fields.get(name, [""])[0] for name in ("verdict", "scenario", "text")))
        rows = self._index.rows()
        fitting = [row for row in rows if wanted.fits(row)]
        counts = Counter(row.result for row in rows)
        text = page.render(
            "runs.html",
            live=True,
            title=f"{len(rows)} runs",
            folder=str(self._runs_dir),
            counts=[(name, counts[name]) for name in VERDICTS if counts[name]],
            verdicts=VERDICTS,
            scenarios=list(scenarios(rows)),
            wanted=wanted,
            filtered=wanted != Wanted(),
            total=len(rows),
            fitting=len(fitting),
            rows=fitting[:MOST_ROWS],
            digest=digest(rows),
        )
        return Answer(200, _HTML, f"{page.policy(live=True)}; {_ALONE}", text.encode())

    def _state(self) -> Answer:
        rows = self._index.rows()
        live = {row.link: _now(row) for row in rows if row.state is not None}
        return Answer(200, _JSON, _FOREIGN, json.dumps({"listing": digest(rows), "live": live}).encode())

    def _file(self, names: Sequence[str]) -> Answer:
        """A file of a run, or of a run of a qualification. Raises `OSError` if there is none."""
        *folders, name = names
        if len(folders) in (1, 3) and name == PAGE:
            return self._page(folders)
        if len(folders) in (2, 4) and (folders[-1] == LOGS or (folders[-1] == WITNESSES and name.endswith(".jsonl"))):
            self._check(folders[:-1])
            return Answer(200, _TEXT, _FOREIGN, run_files.open_below(self._runs_dir, *names))
        raise FileNotFoundError

    def _page(self, folders: Sequence[str]) -> Answer:
        self._check(folders)
        # Only our script can run, and as another site: it zooms and filters.
        policy = f"{page.policy()}; {_ALONE}; sandbox allow-scripts"
        text = self._stored(folders)
        if text is None:
            with self._rendering:
                text = self._rendered(folders)
        return Answer(200, _HTML, policy, text.encode())

    def _check(self, folders: Sequence[str]) -> None:
        """Raises `OSError` unless they lead to a run, or from a qualification to one of its runs, and none is a link."""
        if len(folders) == 3 and folders[1] != "runs":
            raise FileNotFoundError
        run_files.check_folder_below(self._runs_dir, *folders)

    def _stored(self, folders: Sequence[str]) -> str | None:
        try:
            with run_files.open_below(self._runs_dir, *folders, PAGE) as file:
                text = file.read(_MOST_BYTES + 1)
            return decoded if len(text) <= _MOST_BYTES and page.is_ours(decoded := text.decode()) else None
        except (OSError, ValueError):
            return None

    def _rendered(self, folders: Sequence[str]) -> str:
        directory = self._runs_dir.joinpath(*folders)
        if os.path.lexists(directory / QUALIFICATION):
            return qualification_page.page(*Directory.open(directory))
        return of_run(directory)


def message(status: int, text: str) -> Answer:
    """A page for people that says why there is no other."""
    return Answer(status, _TEXT, _FOREIGN, f"{text}\n".encode("utf-8", "replace"))


def _no_such_page() -> Answer:
    return message(404, "There is no such page. The list of runs is at /")


def _now(row: Row) -> dict[str, object]:
    assert row.state is not None
    return {**asdict(replace(row.state, seconds=round(row.state.seconds))), "text": str(row.state)}
