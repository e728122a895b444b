"""The object store of a run: SeaweedFS on loopback, in one process, with one bucket and credentials of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Self

import obstore
import requests
from obstore.exceptions import BaseError
from obstore.store import S3Store

from onceproof.base.errors import ServiceFailed, WaitTimeout
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.stack.api import Proxy
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import lease

BUCKET = "onceproof"
REGION = "us-east-1"
_FOLDER = "checkpoint"

#: Its parts start one after another, in 3 s on two idle cores.
_READY_S = 60.0
#: It learns of changed rules within milliseconds.
_CHANGE_S = 10.0
_ANSWER = timedelta(seconds=5)
#: Its own limit is 8 volumes of 30 GB; a few buckets' worth of small files needs more volumes, and no more space.
_VOLUMES = ("-volume.max=100", "-master.volumeSizeLimitMB=64")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class EmbeddedObjectStore:
    """Implements `onceproof.stack.api.ObjectStore`. Created by `start`, stopped by the owner given to it."""

    def __init__(self, service: Service, port: int, filer: int, proxy: Proxy, key: str, secret: str) -> None:
        """``filer``: the port of the part that keeps the folders, which an administrator may configure."""
        self.service = service
        self.port = port
        self.proxy = proxy
        self._filer = f"http://{HOST}:{filer}/etc/seaweedfs/filer.conf"
        self._read_only: str | None = None
        self.checkpoint = f"s3a://{BUCKET}/{_FOLDER}"
        self.folder = _FOLDER
        self.environment: Mapping[str, str] = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        with _without_settings_for_other_stores():
            self.bucket = S3Store(
                BUCKET,
                endpoint=f"http://{HOST}:{port}",
                region=REGION,
                access_key_id=key,
                secret_access_key=secret,
                virtual_hosted_style_request=False,
                client_options={"allow_http": True, "timeout": _ANSWER},
                retry_config={"max_retries": 2, "retry_timeout": 2 * _ANSWER},
            )

    @classmethod
    def start(cls, owner: Owner, program: Path, logs: Path, make_proxy: Callable[[str, int], Proxy]) -> Self:
        """Start it on a private folder with new credentials, and wait until the bucket can be written.

        Only its S3 port asks for credentials, so only this user should be able to reach the other ports: they are on
        loopback, and hold nothing but the run's checkpoints. Raises `ServiceFailed` with its last log lines.
        """
        folder = owner.scratch / "object-store"
        data = folder / "data"
        data.mkdir(parents=True, mode=0o700)
        key, secret = f"ONCEPROOF{secrets.token_hex(6).upper()}", secrets.token_urlsafe(30)
        hide(secret)
        identities = folder / "identities.json"
        identities.touch(0o600)
        credentials = [{"accessKey": key, "secretKey": secret}]
        identity = {"name": "pipeline", "credentials": credentials, "actions": ["Admin", "Read", "List", "Write"]}
        identities.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
        port, *others = lease(owner, 8)
        names = ("master", "volume", "filer")
        ports = [f"-{name}.port={others[2 * at]}" for at, name in enumerate(names)]
        ports += [f"-{name}.port.grpc={others[2 * at + 1]}" for at, name in enumerate(names)]
        argv: list[str | Path] = [
            program,
            *("-logtostderr=true", "server", f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", *ports),
            *("-master.telemetry=false", *_VOLUMES, "-filer", f"-filer.localSocket={folder / 'filer.sock'}"),
            *("-s3", f"-s3.port={port}", f"-s3.port.grpc={others[6]}", f"-s3.config={identities}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]
        # It is killed at the end, and would leave them.
        grpc = [f"{name}-grpc-{others[2 * at + 1]}" for at, name in enumerate(names)]
        for socket in (*grpc, f"s3-grpc-{others[6]}", f"s3-{port}"):
            owner.push(partial(Path(f"/tmp/seaweedfs-{socket}.sock").unlink, missing_ok=True))  # noqa: S108  # its own choice
        service = owner.start(
            "object-store",
            argv,
            log=logs / "object-store.log",
            env={
                "HOME": str(folder),
                "PATH": "/usr/bin:/bin",
            },  # it also reads settings from the home and working folders
            cwd=folder,
            stop_signal=signal.SIGKILL,  # the run's data, which nobody reads again
        )
        store = cls(service, port, others[4], make_proxy("object-store", port), key, secret)
        try:
            wait_until(
                "the object store to be written", store._writable, deadline_s=_READY_S, abandon=service.check_running
            )
        except WaitTimeout as late:
            raise ServiceFailed(late.message, log_tail=service.log_tail()) from late
        return store

    def settings(self) -> dict[str, str]:
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://{self.proxy.listen}",
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # Otherwise a client sends the head of a PUT, and the rest only once the store has answered that.
            "spark.hadoop.fs.s3a.connection.expect.continue": "false",
        }

    def check_health(self) -> None:
        """Raise `ServiceFailed`, with its last log lines, if it has ended: no fault kills it."""
        self.service.check_running()

    def refuse_writes(self, folder: str) -> None:
        self._read_only = folder  # first: what is asked for is undone, even if no answer came
        self._configure([{"locationPrefix": f"/buckets/{BUCKET}/{folder}", "readOnly": True}])
        wait_until(
            f"the object store to refuse writes to {folder}", lambda: not self._writable(folder), deadline_s=_CHANGE_S
        )

    def accept_writes(self) -> None:
        if self._read_only is None:
            return
        folder = self._read_only
        self._configure([])
        wait_until(
            f"the object store to accept writes to {folder}", lambda: self._writable(folder), deadline_s=_CHANGE_S
        )
        self._read_only = None  # last: what failed can be tried again

    def objects(self) -> list[str]:
        """The keys of all objects in the bucket. Raises `ServiceFailed`."""
        try:
            return [str(each["path"]) for some in obstore.list(self.bucket) for each in some]
        except (BaseError, OSError) as failure:
            raise self._failed(f"cannot list its objects: {failure}") from failure

    def clear(self) -> int:
        """Accept writes again, delete every object, and return how many there were. Raises `ServiceFailed`."""
        self.accept_writes()
        keys = self.objects()
        try:
            if keys:
                obstore.delete(self.bucket, keys)
        except (BaseError, OSError) as failure:
            raise self._failed(f"cannot delete its objects: {failure}") from failure
        return len(keys)

    def _configure(self, locations: list[dict[str, object]]) -> None:
        """Replace the rules about folders. Removing the file would not: the store keeps the rules that it had."""
        rules = {"file": ("filer.conf", json.dumps({"locations": locations}))}
        with requests.Session() as session:
            session.trust_env = False  # not through the environment's proxies: they are for other machines
            try:
                answer = session.post(self._filer, files=rules, timeout=_CHANGE_S)
            except requests.RequestException as error:
                raise self._failed(f"did not answer a change of its rules about folders: {error}") from error
        if answer.status_code != requests.codes.created:
            raise self._failed(f"refused its rules about folders: {answer.status_code}")

    def _failed(self, what: str) -> ServiceFailed:
        return ServiceFailed(f"the object store {what}", log_tail=self.service.log_tail())

    def _writable(self, folder: str = "") -> bool:
        """Whether an object can be written. The first one creates the bucket."""
        try:
            obstore.put(self.bucket, f"{folder}.onceproof", b"")
            obstore.delete(self.bucket, f"{folder}.onceproof")
        except (BaseError, OSError):
            return False
        return True


@contextmanager
def _without_settings_for_other_stores() -> Iterator[None]:
    """Hide the user's own S3 endpoint, token and proxies: a variable such as AWS_ENDPOINT_URL_S3 precedes an argument."""
    hidden = [name for name in os.environ if name.startswith("AWS_") or name.lower() in _PROXIES]
    kept = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(kept)
