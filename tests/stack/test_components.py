"""The component cache: each component is fetched once, completely, and its hash checked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem, Interrupted
from onceproof.stack.fetch import components
from onceproof.stack.fetch.components import Component, obtain, verify
from onceproof.stack.fetch.progress import FetchStopped, Progress

CONTENT = b"what the mirror should serve"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def thing(fetch: Callable[[Path, Progress], None], *, pinned: bool = True) -> Component:
    return Component("thing", "1.0", "k", {"thing.jar": DIGEST} if pinned else None, fetch)


def serve(folder: Path, _progress: Progress) -> None:
    (folder / "thing.jar").write_bytes(CONTENT)


@pytest.fixture
def progress() -> Progress:
    return Progress(show=False)


def test_a_component_is_fetched_once_and_found_afterwards(tmp_path: Path, progress: Progress) -> None:
    fetched = []

    def fetch(folder: Path, shown: Progress) -> None:
        fetched.append(folder)
        serve(folder, shown)

    for _ in range(2):
        assert obtain(thing(fetch), tmp_path, progress) == {"thing.jar": DIGEST}
    assert len(fetched) == 1
    assert (tmp_path / "thing-1.0-k" / "thing.jar").read_bytes() == CONTENT


def test_of_two_processes_that_start_at_once_one_fetches_and_the_other_waits(
    tmp_path: Path, progress: Progress
) -> None:
    fetched = []
    second_is_waiting = threading.Event()

    class Watched(Progress):
        def say(self, line: str) -> None:
            assert "another process is fetching thing 1.0" in line
            second_is_waiting.set()

    def fetch(folder: Path, shown: Progress) -> None:
        # The first holds the lock until the second waits for it: without the lock the second would never report that.
        assert second_is_waiting.wait(30)
        fetched.append(folder)
        serve(folder, shown)

    watched = Watched(show=False)
    with ThreadPool(2) as pool:
        found = pool.map(lambda _: obtain(thing(fetch), tmp_path, watched), range(2))
    assert found == [{"thing.jar": DIGEST}] * 2
    assert len(fetched) == 1


def test_waiting_for_another_process_can_be_interrupted(tmp_path: Path, progress: Progress) -> None:
    def interrupt(_folder: Path, _progress: Progress) -> None:
        other = Progress(show=False)
        other.stopped.set()
        with pytest.raises(FetchStopped):
            obtain(thing(serve), tmp_path, other)
        raise Interrupted("as in the other one")

    with pytest.raises(Interrupted):
        obtain(thing(interrupt), tmp_path, progress)


def test_an_interrupted_fetch_leaves_nothing_that_looks_finished(tmp_path: Path, progress: Progress) -> None:
    def die(folder: Path, _progress: Progress) -> None:
        (folder / "thing.jar").write_bytes(CONTENT[:5])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(thing(die), tmp_path, progress)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert obtain(thing(serve), tmp_path, progress) == {"thing.jar": DIGEST}


def test_the_next_fetch_removes_what_a_killed_fetch_left(tmp_path: Path, progress: Progress) -> None:
    left = tmp_path / ".thing-1.0-k.abc123"
    left.mkdir()
    (left / "thing.jar").write_bytes(CONTENT[:5])
    obtain(thing(serve), tmp_path, progress)
    assert not left.exists()


def test_a_wrong_file_is_never_put_into_the_cache(tmp_path: Path, progress: Progress) -> None:
    def serve_rubbish(folder: Path, _progress: Progress) -> None:
        (folder / "thing.jar").write_bytes(b"rubbish")

    with pytest.raises(EnvironmentProblem, match="SHA-256"):
        obtain(thing(serve_rubbish), tmp_path, progress)
    assert not (tmp_path / "thing-1.0-k").exists()


def test_the_error_for_a_changed_file_has_both_hashes_and_a_fix(tmp_path: Path, progress: Progress) -> None:
    obtain(thing(serve), tmp_path, progress)
    changed = tmp_path / "thing-1.0-k" / "thing.jar"
    changed.write_bytes(b"changed")
    with pytest.raises(EnvironmentProblem) as caught:
        obtain(thing(serve), tmp_path, progress)
    message = str(caught.value)
    for part in (
        str(changed),
        DIGEST,
        hashlib.sha256(b"changed").hexdigest(),
        f"delete {changed.parent} and run again",
    ):
        assert part in message
    changed.unlink()
    with pytest.raises(EnvironmentProblem, match=r"thing\.jar is missing"):
        obtain(thing(serve), tmp_path, progress)


def test_a_component_built_here_is_checked_against_its_recorded_hash(tmp_path: Path, progress: Progress) -> None:
    built = thing(serve, pinned=False)
    assert obtain(built, tmp_path, progress) == {"thing.jar": DIGEST}
    (built.folder(tmp_path) / "thing.jar").write_bytes(b"changed")
    with pytest.raises(EnvironmentProblem, match=DIGEST):
        verify(built, built.folder(tmp_path))
    (built.folder(tmp_path) / "SHA256SUMS").unlink()
    with pytest.raises(EnvironmentProblem, match="SHA256SUMS"):
        verify(built, built.folder(tmp_path))


def test_the_error_for_an_unwritable_cache_names_the_variable_to_set(tmp_path: Path, progress: Progress) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="ONCEPROOF_CACHE"):
        obtain(thing(serve), tmp_path / "file" / "cache", progress)


def test_status_distinguishes_missing_damaged_and_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_CACHE", str(tmp_path))
    present, damaged, missing = (replace(thing(serve), name=name) for name in ("present", "damaged", "missing"))
    monkeypatch.setattr(components, "shipped", lambda: (present, damaged, missing))
    for component in (present, damaged):
        obtain(component, tmp_path, Progress(show=False))
    (damaged.folder(tmp_path) / "thing.jar").write_bytes(b"changed")
    states = {status.name: (status.state, status.problem is None) for status in components.status()}
    assert states == {"present": ("present", True), "damaged": ("damaged", False), "missing": ("missing", True)}


def test_the_shipped_pins_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEPROOF_CACHE", raising=False)
    pins = json.loads((files("onceproof.stack.fetch") / "components.json").read_text())
    for name, pin in pins.items():
        assert len({jar["file"] for jar in pin["jars"]}) == len(pin["jars"]), name
        parts = 4 if name == "apicurio-registry" else 2  # an archive, not a jar
        assert all(len(jar["sha256"]) == 64 and jar["coordinate"].count(":") == parts for jar in pin["jars"]), name
    connector = {jar["coordinate"] for jar in pins["spark-kafka-connector"]["jars"]}
    assert connector == {
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    }
    assert "org.apache.kafka:kafka_2.13:4.3.1" in {jar["coordinate"] for jar in pins["kafka"]["jars"]}
    assert [component.name for component in components.shipped()] == [
        "kafka",
        "spark-kafka-connector",
        "java-compiler",
        "postgres-driver",
        "qpid-broker",
        "delta",
        "hadoop-aws",
        "apicurio-registry",
        "toxiproxy-server",
        "seaweedfs",
    ]


@pytest.mark.real
@pytest.mark.services
def test_a_run_without_spark_waits_for_none_of_sparks_components(monkeypatch: pytest.MonkeyPatch) -> None:
    obtained = []

    def watched(component: Component, folder: Path, progress: Progress) -> dict[str, str]:
        obtained.append(component.name)
        return obtain(component, folder, progress)

    monkeypatch.setattr(components, "obtain", watched)
    found = components.ensure(progress=False, spark=False)
    assert sorted(obtained) == ["kafka", "kafka-classes", "postgres-driver", "toxiproxy-server"]
    assert (found.spark_jars, found.spark_archive, found.checkpoint_jar) == ((), None, None)
    assert found.kafka_archive is not None
