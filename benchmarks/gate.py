"""Shows where the time of `uv run tox` went: by environment, by test file, and the longest tests. Run it after tox.

    uv run python benchmarks/gate.py [.tox] [--most 20]

Every figure is also given as a share of the whole, so that two machines, or a loaded one, can be compared.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def tests(folder: Path) -> Iterator[tuple[str, str, str, float]]:
    """Yield environment and kind (``py/real``), file, test, and its seconds including set-up and tear-down."""
    for path in sorted(folder.glob("*/*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  # our own tests wrote it
            name = f"{path.parent.name}/{path.stem}"
            yield name, str(case.get("classname")), str(case.get("name")), float(case.get("time") or 0)


def table(title: str, taken: dict[str, list[float]], most: int) -> Iterator[str]:
    whole = sum(map(sum, taken.values())) or 1.0
    yield f"{title:<84} tests       s  share"
    for name in sorted(taken, key=lambda name: -sum(taken[name]))[:most]:
        yield f"{name[-84:]:<84} {len(taken[name]):>5} {sum(taken[name]):>7.1f}  {sum(taken[name]) / whole:>4.0%}"
    if len(taken) > most:
        yield f"... and {len(taken) - most} more"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".tox"), help="the folder of tox (default: .tox)")
    parser.add_argument("--most", type=int, default=20, help="rows of each table (default: 20)")
    options = parser.parse_args()
    by: dict[str, dict[str, list[float]]] = {title: defaultdict(list) for title in ("environment", "file", "test")}
    for environment, file, test, seconds in tests(options.folder):
        by["environment"][environment].append(seconds)
        by["file"][f"{environment} {file}"].append(seconds)
        by["test"][f"{file}::{test}"].append(seconds)
    if not by["environment"]:
        raise SystemExit(f"there are no results of tests in {options.folder}: run `uv run tox` first")
    for title, taken in by.items():
        print(*table(title, taken, options.most), "", sep="\n")


if __name__ == "__main__":
    main()
