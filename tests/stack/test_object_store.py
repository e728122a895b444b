"""The object store of a run, as a real process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceproof.base.masking import masked
from onceproof.stack.fetch import components
from onceproof.stack.object_store.server import BUCKET, REGION, EmbeddedObjectStore
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.server import ToxiproxyServer

pytestmark = [pytest.mark.real, pytest.mark.services]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def store(logs: Path) -> Iterator[EmbeddedObjectStore]:
    binary = components.ensure_toxiproxy()
    program, _ = components.ensure_object_store()
    with Owner() as owner, pytest.MonkeyPatch.context() as user:
        # The user's own store, which must not be used instead.
        user.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
        user.setenv("AWS_SESSION_TOKEN", "of-the-user")
        user.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        toxiproxy = ToxiproxyServer.start(owner, binary, logs / "toxiproxy.log", lease(owner, 1)[0])
        started = EmbeddedObjectStore.start(
            owner, program, logs, lambda name, port: toxiproxy.create(name, lease(owner, 1)[0], port)
        )
        user.undo()
        yield started


def client(store: EmbeddedObjectStore, secret: str) -> S3Store:
    """A client on the pipeline's network path."""
    return S3Store(
        BUCKET,
        endpoint=f"http://{store.proxy.listen}",
        region=REGION,
        access_key_id=store.environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=secret,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_only_the_run_s_credentials_open_it_and_they_stay_secret(store: EmbeddedObjectStore, logs: Path) -> None:
    secret = store.environment["AWS_SECRET_ACCESS_KEY"]
    obstore.put(client(store, secret), "checkpoint/q/metadata", b"{}")
    assert bytes(obstore.get(store.bucket, "checkpoint/q/metadata").bytes()) == b"{}"
    with pytest.raises(BaseError):
        obstore.put(client(store, "another"), "checkpoint/q/metadata", b"stolen")
    assert secret not in (logs / "object-store.log").read_text(encoding="utf-8", errors="replace")
    assert secret not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
    assert secret not in masked(f"a line with {secret}")


def test_it_refuses_writes_below_one_folder_until_it_accepts_them_again(store: EmbeddedObjectStore) -> None:
    try:
        store.refuse_writes("checkpoint/q/commits/")
        with pytest.raises(BaseError, match="500"):
            obstore.put(store.bucket, "checkpoint/q/commits/1", b"v1")
        obstore.put(store.bucket, "checkpoint/q/offsets/1", b"v1")
    finally:
        store.accept_writes()
    obstore.put(store.bucket, "checkpoint/q/commits/1", b"v1")
    store.accept_writes()


def test_a_conditional_write_succeeds_once(store: EmbeddedObjectStore) -> None:
    obstore.put(store.bucket, "checkpoint/q/commits/7", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store.bucket, "checkpoint/q/commits/7", b"second", mode="create")
    assert bytes(obstore.get(store.bucket, "checkpoint/q/commits/7").bytes()) == b"first"
