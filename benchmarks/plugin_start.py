"""How much later does every pytest begin because the plugin is installed? Starts without scenarios, with and without it, in turns."""

from __future__ import annotations

import argparse
import json
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
        took: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(starts):
            for kind, options in (("with", []), ("without", ["-p", "no:onceproof"])):
                began = time.perf_counter()
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
                took[kind].append(1000 * (time.perf_counter() - began))
    medians = {kind: round(statistics.median(times), 1) for kind, times in took.items()}
    print(json.dumps({"starts": starts, "median_ms": medians, "added_ms": medians["with"] - medians["without"]}))


if __name__ == "__main__":
    main()
