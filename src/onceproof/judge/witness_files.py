"""All witnesses of each finding, in files of their own: ``verdict.json`` holds the first few.

One JSON object per line, in ``witnesses/ANOMALY-OUTPUT[-SOURCE].jsonl`` of the run directory. The witnesses are written one by one,
so their number costs no memory.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

from onceproof.base.masking import masked_value
from onceproof.history import run_files
from onceproof.history.run_directory import run_dir_problem
from onceproof.judge.findings import Finding

FOLDER = "witnesses"


class WitnessFiles:
    """Writes the files of one run; whatever an earlier verdict, or a run from elsewhere, has there is removed, and no link is
    followed. Only the owner can read them.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._names: set[str] = set()
        run_files.remove(self._folder)

    def write(self, finding: Finding) -> str | None:
        """The file's path, relative to the run directory; None for a finding that has no witness."""
        if finding.every is None or not finding.witnesses:
            return None
        name = self._name(finding)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(self._folder / name, flags, 0o600), "w", encoding="utf-8") as file:
                for witness in finding.every():
                    file.write(json.dumps(masked_value(asdict(witness)), default=str) + "\n")
        except OSError as refused:
            raise run_dir_problem(refused, self._folder.parent) from refused
        return f"{FOLDER}/{name}"

    def _name(self, finding: Finding) -> str:
        parts = [finding.anomaly, finding.output, *([finding.source] if finding.source is not None else [])]
        stem = re.sub(r"[^\w.-]+", "-", "-".join(parts))[:200]
        name, number = f"{stem}.jsonl", 1
        while name in self._names:  # one anomaly of one output may make two findings: what stays, and what does not
            number += 1
            name = f"{stem}-{number}.jsonl"
        self._names.add(name)
        return name
