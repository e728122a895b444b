"""What does a job pay for importing the sinks, next to the clients that they use? Starts Python for each import in turn.

``onceproof_sinks`` is imported from its sources, as onceproof-sinks installs it. The first ratio is what the sinks add without their clients.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SINKS = Path(__file__).parent.parent / "sinks"

IMPORTS = {
    "nothing": "pass",
    "sinks": "import onceproof_sinks.postgres, onceproof_sinks.kafka",
    "psycopg": "import psycopg",
    "confluent_kafka": "import confluent_kafka",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20, help="starts of each kind (default: 20)")
    starts: int = parser.parse_args().starts
    cpu: dict[str, list[float]] = {kind: [] for kind in IMPORTS}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "onceproof_sinks").symlink_to(SINKS)
        for number in range(starts + 1):
            for kind, statement in IMPORTS.items():
                used = cpu_ms(statement, folder)
                if number > 0:  # the first start compiles
                    cpu[kind].append(used)
    nothing = statistics.median(cpu["nothing"])
    added = {kind: statistics.median(values) - nothing for kind, values in cpu.items() if kind != "nothing"}
    ratios = {f"of_{client}": round(added["sinks"] / added[client], 2) for client in ("psycopg", "confluent_kafka")}
    rounded = {kind: round(ms, 1) for kind, ms in {"nothing": nothing, **added}.items()}
    print(json.dumps({"starts": starts, "sinks": ratios, "added_cpu_ms": rounded}))


def cpu_ms(statement: str, path: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-c", statement], env={**environment, "PYTHONPATH": path})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, statement)
    return 1000 * (used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
