"""The checkpoint file system's jar: the same bytes each time, and a clear message if it does not compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch import checkpoint_jar, components
from onceproof.stack.fetch.java import find_java
from onceproof.stack.fetch.progress import FetchStopped, Progress


def test_the_sources_are_shipped_and_the_recipe_depends_on_compiler_and_spark() -> None:
    assert list(checkpoint_jar.sources()) == [
        "CheckpointFiles.java",
        "ForklessLocalFs.java",
        "Forwarding.java",
        "Harness.java",
        "Modes.java",
        "Reuse.java",
        "Trigger.java",
    ]
    one = checkpoint_jar.recipe("java-compiler-1", {})
    assert one != checkpoint_jar.recipe("java-compiler-2", {})
    assert one != checkpoint_jar.recipe("java-compiler-1", {"SPARK_HOME": "/nowhere"})


@pytest.fixture
def compiler() -> Path:
    components.ensure(progress=False)
    (pinned,) = (one for one in components.shipped() if one.name == "java-compiler")
    return next(pinned.folder(components.cache_folder()).glob("ecj-*.jar"))


@pytest.mark.real
@pytest.mark.services
def test_two_compilations_give_the_same_file(tmp_path: Path, compiler: Path) -> None:
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        checkpoint_jar.maker(find_java(), compiler, {})(folder, Progress(show=False))
        assert [path.name for path in folder.iterdir()] == [checkpoint_jar.FILE]
        made.append((folder / checkpoint_jar.FILE).read_bytes())
    assert made[0] == made[1]
    with ZipFile(tmp_path / "one" / checkpoint_jar.FILE) as jar:
        assert "onceproof/CheckpointFiles.class" in jar.namelist() == sorted(jar.namelist())


@pytest.mark.real
@pytest.mark.services
def test_the_error_for_an_incompatible_spark_shows_the_compilers_output(tmp_path: Path, compiler: Path) -> None:
    (tmp_path / "jars").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    make = checkpoint_jar.maker(find_java(), compiler, {"SPARK_HOME": str(tmp_path)})
    with pytest.raises(EnvironmentProblem, match=r"(?s)does not compile.*org\.apache"):
        make(target, Progress(show=False))
    assert list(target.iterdir()) == []


@pytest.mark.real
@pytest.mark.services
def test_an_interrupt_ends_the_compiler_and_leaves_nothing(tmp_path: Path, compiler: Path) -> None:
    class Stopping(Progress):
        @contextmanager
        def doing(self, what: str, steps: int) -> Iterator[Callable[[], None]]:
            self.stopped.set()  # while the compiler works
            yield lambda: None

    stopping = Stopping(show=False)
    with pytest.raises(FetchStopped):
        checkpoint_jar.maker(find_java(), compiler, {})(tmp_path, stopping)
    assert list(tmp_path.iterdir()) == []
