"""How much later does every pytest begin because the plugin is installed? Starts without scenarios, with and without it, in turns."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20, help="starts of each kind")
    starts: int = parser.parse_args().starts
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_one.py").write_text("def test_one(): pass\n", encoding="utf-8")
        wall: dict[str, list[float]] = {"with": [], "without": []}
        cpu: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(starts):
            for kind, options in (("with", []), ("without", ["-p", "no:onceproof"])):
                began = time.perf_counter()
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
                process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, command)
                wall[kind].append(1000 * (time.perf_counter() - began))
                cpu[kind].append(1000 * (used.ru_utime + used.ru_stime))
    print(json.dumps({"starts": starts, "wall_ms": _compared(wall), "cpu_ms": _compared(cpu)}))


def _compared(times: dict[str, list[float]]) -> dict[str, float]:
    """Medians of each kind, and what the plugin adds: the difference of the medians, and of the quickest starts.

    On a busy machine the difference of the quickest starts says most.
    """
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    least = min(times["with"]) - min(times["without"])
    added = {"added": medians["with"] - medians["without"], "added_of_quickest": least}
    return {kind: round(ms, 1) for kind, ms in {**medians, **added}.items()}


if __name__ == "__main__":
    main()
