"""A program in the place of ``spark-submit``: asks the harness how to start the driver's JVM. Standard library only.

``bin/spark-submit`` of `onceproof.pipeline.tiers.spark_home` runs it. PySpark runs that file with the job's configuration as
arguments, and waits for a file with the port and the secret of the JVM. The harness answers with one line of JSON:

- ``{"do": "scripts"}``: Spark's own ``spark-submit``, as without this program;
- ``{"do": "start", "argv": [...], "env": {...}}``: this JVM, which Spark's scripts would also start;
- ``{"do": "join", "port": N, "secret": TEXT}``: a JVM that already runs. This program stays until its input ends.

Without an answer, or if anything here fails, it becomes Spark's own ``spark-submit``: the job must not notice.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

#: The harness may have to start a JVM before it answers. It gives up on that JVM sooner, and then says why.
_ANSWER_S = 180.0
_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""PySpark's variable with the path of the file that it waits for."""


def main(real: str, address: str, words: list[str]) -> None:
    """Become the JVM, or wait next to it. Returns only after a JVM that already ran was joined."""
    env = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}  # ours: the user has set none
    connection: socket.socket | None = None
    answer: dict[str, Any] = {}
    try:
        connection, answer = _ask(address, {"argv": words, "cwd": str(Path.cwd()), "env": env, "pid": os.getpid()})
        if answer["do"] == "join":
            _write(os.environ[_FILE], int(answer["port"]), str(answer["secret"]))
        elif answer["do"] == "start":
            _become(answer["argv"], {**answer["env"], _FILE: os.environ[_FILE]})
    except Exception as failure:
        sys.stderr.write(f"onceproof: {failure!r}; Spark's own scripts start the JVM\n")
        answer = {}
    if connection is None or answer.get("do") != "join":
        _become([real, *words], env)
    _stay(connection)


def _become(argv: list[str], env: dict[str, str]) -> NoReturn:
    os.execve(argv[0], argv, env)  # noqa: S606 - no shell, as wanted


def _ask(address: str, request: dict[str, Any]) -> tuple[socket.socket, dict[str, Any]]:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_S)
    connection.connect(address)
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb") as lines:
        answer: dict[str, Any] = json.loads(lines.readline())
    return connection, answer


def _write(path: str, port: int, secret: str) -> None:
    """Write what PySpark reads: the port, the length of the secret, and the secret. The file appears complete."""
    text = secret.encode()
    with open(f"{path}.part", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(struct.pack(">ii", port, len(text)) + text)
    Path(f"{path}.part").rename(path)


def _stay(connection: socket.socket) -> None:
    """Return when PySpark ends (its pipe, this program's input, is then closed) or when the harness closes the connection."""
    connection.settimeout(None)
    harness = connection.fileno()
    while True:
        ready, _, _ = select.select([0, harness], [], [])
        if any(not os.read(end, 4096) for end in ready):
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
