"""Writes all witnesses of each finding to a file of its own: ``verdict.json`` holds only the first few.

The file is ``witnesses/ANOMALY-OUTPUT[-SOURCE].jsonl`` in the run directory, with one JSON object per line. The witnesses are
written one by one, so memory does not grow with their number.
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
from onceproof.judge.findings import Finding, names_of

FOLDER = "witnesses"


class WitnessFiles:
    """Writes the witness files of one run, readable by their owner only. Removes what is already in the folder (from an earlier
    verdict, or copied from elsewhere), and follows no links.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._names: set[str] = set()
        run_files.remove(self._folder)

    def write(self, finding: Finding) -> str | None:
        """Write one file; return its path relative to the run directory, or None for a finding without witnesses."""
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
        stem = re.sub(r"[^\w.-]+", "-", "-".join(names_of(finding)))[:200]
        name, number = f"{stem}.jsonl", 1
        while name in self._names:  # one anomaly in one output may make two findings: lasting and transient
            number += 1
            name = f"{stem}-{number}.jsonl"
        self._names.add(name)
        return name
