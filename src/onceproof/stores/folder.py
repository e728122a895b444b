"""What stores have in common whose outputs are folders of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, shown
from onceproof.stack.api import Stack

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)


class FolderStore:
    """Implements the part of `onceproof.stores.contract.Store` that is about the folder's name."""

    field: str

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        if not _NAME.fullmatch(spec.place):
            hint = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
            yield Complaint((self.field,), f"{shown(spec.place)} cannot be the name of a folder", hint)

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return str(stack.files / spec.place)
