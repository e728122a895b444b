"""An external Spark: a master and workers by plain ``spark-class``, without jars, settings or secrets of ours."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

from onceproof.base.waiting import wait_until
from onceproof.stack.fetch import components, driver_archive
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import accepts_connections, lease

HOST = "127.0.0.1"

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for processes that live for seconds, as an administrator may choose them."""


class ExternalSparkServices:
    """Ends with its owner. ``master``: ``spark://127.0.0.1:PORT``."""

    def __init__(self, owner: Owner, folder: Path, workers: int = 2) -> None:
        home = driver_archive.spark_home({})
        port, ui, *others = lease(owner, 2 + 2 * workers)
        self.folder = folder
        self._ui = ui
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "JAVA_HOME": str(components.ensure(progress=False).java.home),
            "SPARK_HOME": str(home),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }

        def start(name: str, main: str, host: str, ports: list[int], *words: str | Path) -> Service:
            listen = ["--host", host, "--port", str(ports[0]), "--webui-port", str(ports[1])]
            argv = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *listen, *words]
            env_of = {**env, "SPARK_LOCAL_IP": host}
            return owner.start(name, argv, log=folder / f"{name}.log", env=env_of, cwd=folder)

        self.master = f"spark://{HOST}:{port}"
        self.services = [start("external-master", "master.Master", HOST, [port, ui])]
        wait_until("the external master to listen", lambda: accepts_connections(HOST, port), deadline_s=60)
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", folder / f"work-{number}"]
            ports = others[2 * number : 2 * number + 2]
            name = f"external-worker-{number}"
            self.services.append(start(name, "worker.Worker", f"127.0.0.{2 + number}", ports, *size, self.master))
        wait_until("the external workers", lambda: self._alive() == workers, deadline_s=90)

    def status(self) -> dict[str, object]:
        """What the master's web page says."""
        with urllib.request.urlopen(f"http://{HOST}:{self._ui}/json/", timeout=5) as answer:
            found: dict[str, object] = json.load(answer)
        return found

    def _alive(self) -> object:
        for service in self.services:
            service.check_running()
        try:
            return self.status()["aliveworkers"]
        except (OSError, ValueError):  # its web page, or the part of it that is JSON, is not there yet
            return None

    def applications(self) -> list[str]:
        """Names of the applications that have run here."""
        status = self.status()
        return [app["name"] for key in ("activeapps", "completedapps") for app in status[key]]  # type: ignore[attr-defined]

    def tasks_logs(self) -> list[Path]:
        """The logs of all executors that ever ran."""
        return sorted(self.folder.glob("work-*/app-*/*/stderr"))
