"""Only one command works in the directory of an exploration."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.api.exploration import explore
from onceproof.base.errors import UsageError
from onceproof.explore.exploration import FILE, Directory
from onceproof.history.run_directory import locked


def test_continuing_is_refused_while_another_command_explores_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory.create(tmp_path, "made-up")
    monkeypatch.setattr(Directory, "open", classmethod(lambda cls, path: (cls(path), None)))
    with locked(directory.path, "explore"), pytest.raises(UsageError, match="another onceproof explore works in"):
        explore(go_on=directory.path)
    assert not (directory.path / FILE).exists()


def test_a_directory_has_no_dots_in_its_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert Directory(tmp_path / "a" / ".." / "b").path == tmp_path / "b"
