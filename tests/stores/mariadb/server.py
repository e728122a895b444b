"""A MariaDB from Debian's packages that a test owns: its own folder, a free port on loopback, and no privileges."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from onceproof.base.waiting import wait_until

_START_S = 60.0
_USER = "nobody"


@dataclass(frozen=True)
class MariaDb:
    port: int
    password: str

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of user ``booker``, who may do everything in database ``shop`` and nothing elsewhere."""
        return f"mysql+pymysql://booker:{self.password}@127.0.0.1:{self.port}/shop"

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run and commit the statements; return the rows of the last one."""
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=self.port,
                user="booker",
                password=self.password,
                database="shop",
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


@contextmanager
def mariadb() -> Iterator[MariaDb]:
    """Skips the test if MariaDB is not installed, as tests with RabbitMQ do."""
    search = f"{os.environ['PATH']}:/usr/sbin"
    server, install = (shutil.which(name, path=search) for name in ("mariadbd", "mariadb-install-db"))
    if server is None or install is None:
        pytest.skip("MariaDB is not installed: apt-get install mariadb-server-core mariadb-client-core")
    as_user = ["--user=" + _USER] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="onceproof-mariadb-"))
    try:
        data = folder / "data"
        found = MariaDb(_free_port(), secrets.token_urlsafe(18))
        first = folder / "first.sql"
        first.touch(mode=0o600)
        first.write_text(
            f"ALTER USER root@localhost IDENTIFIED BY '{secrets.token_urlsafe(18)}';\n"
            "CREATE DATABASE shop CHARACTER SET utf8mb4;\n"
            f"CREATE USER booker@'127.0.0.1' IDENTIFIED BY '{found.password}';\n"
            "GRANT ALL ON shop.* TO booker@'127.0.0.1';\n"
        )
        if as_user:
            for path in (folder, first):
                shutil.chown(path, _USER)
        made = [
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run([*made, *as_user], check=True, capture_output=True, text=True, timeout=_START_S)
        options = [f"--datadir={data}", f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--init-file={first}"]
        options += [
            f"--port={found.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=16M",
        ]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([server, "--no-defaults", *options, *as_user], stdout=log, stderr=log)
        try:
            _wait(process, found, folder / "log")
            yield found
        finally:
            process.terminate()
            process.wait(timeout=30)
    finally:
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], found: MariaDb, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"MariaDB ended:\n{log.read_text()[-2000:]}"
        try:
            found.execute("SELECT 1")
        except pymysql.Error:
            return False
        return True

    wait_until("MariaDB to answer", answers, deadline_s=_START_S, explain=lambda: log.read_text()[-2000:])
