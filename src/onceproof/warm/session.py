"""A program (``python -m``): one Spark session that executes many schedules of a pipeline given as a Python function.

Arguments: the harness's socket, the socket of the checkpoint file system, the function's name, how many schedules to run at
once, the last batch at which faults strike, and the most records of a batch. The harness sends one JSON line for each schedule,
and gets one back when it has ended.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from onceproof.base.waiting import wait_until
from onceproof.pipeline import callable_driver
from onceproof.scenario.points import Point
from onceproof.warm import checkpoint, hooks
from onceproof.warm.attempts import Attempts, Strike
from onceproof.warm.gate import SessionGate
from onceproof.warm.loading import load_again

#: How long the report of a log write that is on disk may take. Only writes of the first batches wait for it.
_REPORTED_S = 5.0

#: They change how much Spark computes for a batch of a few rows, not what it computes.
_SETTINGS = {
    # But this: a worker that is used again would remember what tasks of another start, or of another schedule, have written.
    "spark.python.worker.reuse": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "1",
    "spark.ui.showConsoleProgress": "false",
    "spark.locality.wait": "0",
}


_CUT_OFF = "it did not end in time"


class Session:
    """Executes schedules. Each has its own checkpoint, and with it its own query, and its own arguments."""

    def __init__(self, spark: SparkSession, gate: SessionGate, function: str) -> None:
        self._spark = spark
        self._gate = gate
        self._function = function

    def execute(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the query until its input is drained, and start it again after each fault.

        Returns what it reached, how often it started, the failures of the job itself, whether it ``ended``, and whether it
        ``gave_up``: as the supervisor of an ordinary run, after more than ``restarts`` failures in a row without progress.
        Raises `WaitTimeout` if a log write was not reported.
        """
        strikes = [Strike(s["batch"], Point(s["point"]), s["attempt"]) for s in request["strikes"]]
        attempts = Attempts(Path(request["checkpoint"]), strikes)
        deadline = time.monotonic() + request["deadline_s"]
        self._gate.add(attempts)
        errors: list[str] = []
        in_a_row, commits, gave_up = 0, 0, False
        try:
            while True:
                error = self._start(attempts, request["args"], deadline)
                if error is None and not attempts.struck:
                    break
                if error == _CUT_OFF:  # a fault may have struck, but no time is left for another start
                    errors.append(error)
                    break
                before, commits = commits, attempts.commits()
                if commits != before:
                    in_a_row = 0
                elif not attempts.struck:
                    in_a_row += 1
                if not attempts.struck:
                    errors.append(error or "")
                    gave_up = bool(attempts.fired) and in_a_row > request["restarts"]
                    if not attempts.fired or gave_up or time.monotonic() > deadline:
                        break
                _close(attempts)
                attempts.begin_start(attempts.start + 1)
            self._await_reports(attempts)
        finally:
            _close(attempts)  # of the last start: else each schedule might keep one open
            self._gate.remove(attempts)
        return {
            **attempts.to_json(),
            "id": request["id"],
            "last_start": attempts.start,
            "errors": errors,
            "ended": error is None,
            "gave_up": gave_up,
        }

    def _await_reports(self, attempts: Attempts) -> None:
        """Wait until the session knows of all log writes that are on disk. Raises `WaitTimeout`."""

        def unreported() -> list[str]:
            return checkpoint.unreported(attempts.checkpoint, attempts.to_json()["events"])

        wait_until(
            "the reports of all log writes",
            lambda: not unreported(),
            deadline_s=_REPORTED_S,
            every_s=0.01,
            explain=lambda: f"no report of {', '.join(unreported())}",
        )

    def _start(self, attempts: Attempts, args: dict[str, Any], deadline: float) -> str | None:
        """One start of the query. Returns why it failed; None if it came to its end."""
        query = None
        try:
            with hooks.building(attempts):
                writer = callable_driver.build(load_again(self._function), self._spark, args)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(max(1, math.ceil(deadline - time.monotonic()))):
                return _CUT_OFF
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"
        finally:
            if query is not None and query.isActive:
                query.stop()
        return None


def _close(attempts: Attempts) -> None:
    """Close the connections of a start that has ended, as the kernel does: an open transaction would hold its locks."""
    for connection in list(attempts.connections):
        connection.close()


def main(harness: str, gate_path: str, function: str, at_once: int, last_batch: int, records: int) -> None:
    # A query that keeps state also runs a batch without input after each that moves the watermark: twice as many.
    gate = SessionGate(Path(gate_path), range(2 * (last_batch + 1)))
    gate.start()
    spark = callable_driver.session(_SETTINGS)
    spark.sparkContext.setLogLevel("OFF")  # each fault would log a long trace
    hooks.install(records)
    session = Session(spark, gate, function)
    sending = threading.Lock()
    with socket.socket(socket.AF_UNIX) as connection, ThreadPoolExecutor(at_once) as pool:
        connection.connect(harness)

        def send(message: dict[str, Any]) -> None:
            with sending:
                connection.sendall(json.dumps(message).encode() + b"\n")

        def execute(request: dict[str, Any]) -> None:
            try:
                send(session.execute(request))
            except Exception as failure:  # the harness must not wait for an answer that never comes
                send({"id": request["id"], "failed": f"{type(failure).__name__}: {failure}"})

        send({"ready": os.getpid()})
        for line in connection.makefile("r", encoding="utf-8"):
            pool.submit(execute, json.loads(line))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
