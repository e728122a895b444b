"""Prints the failures of the last `tox` once more, one line each, because a CI log shows its end first."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

# As many lines as fit on a screen.
_MOST = 20


def failures(folder: Path) -> list[str]:
    """Return ``environment: file::test: first line of the message`` for each failure in the JUnit files below ``folder``."""
    found = []
    for path in sorted(folder.glob("*/*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  # our own tests wrote it
            for problem in [*case.findall("failure"), *case.findall("error")]:
                message = (problem.get("message") or "no message").strip().splitlines()[0]
                found.append(f"{path.parent.name}: {case.get('classname')}::{case.get('name')}: {message[:200]}")
    return found


def main() -> int:
    found = failures(Path(sys.argv[1] if len(sys.argv) > 1 else ".tox"))
    for line in found[:_MOST]:
        print(line)
    if len(found) > _MOST:
        print(f"and {len(found) - _MOST} more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
