"""What the embedded and the external stack have in common: the components that the job uses, and those that `versions` lists."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from onceproof.stack.fetch.components import Components
from onceproof.stack.toxiproxy.server import ToxiproxyServer


class FromComponents:
    """Base of the stacks."""

    def __init__(self, components: Components, files: Path, toxiproxy: ToxiproxyServer, *, postgres: bool) -> None:
        """``postgres``: whether the stack has it, so that jobs need its driver on their class path."""
        self.files = files
        self.toxiproxy = toxiproxy
        self.spark_class_path = (*components.spark_jars, *([components.postgres_driver] if postgres else []))
        self.spark_archive = components.spark_archive
        self.checkpoint_jar = components.checkpoint_jar
        self.postgres_driver = components.postgres_driver
        self._components = components

    def versions(self) -> dict[str, Any]:
        """Component -> version; for toxiproxy-server, which is built here, version and SHA-256."""
        server = self._components.toxiproxy_server.name
        return {
            **self._components.versions,
            server: {"version": self._components.versions[server], "sha256": self._components.hashes[server]},
            "java": self._components.java.version,
            "python": platform.python_version(),
            **{name: installed(name) for name in ("pyspark", "confluent-kafka")},
        }
