"""Writes the picture of a run of consumers into its directory, as `picture.svg` and `picture.txt`."""

from __future__ import annotations

from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.history import run_files
from onceproof.history.run_directory import run_dir_problem
from onceproof.reports.picture import picture
from onceproof.reports.picture import svg as picture_svg
from onceproof.reports.picture import text as picture_text

SVG, TEXT = "picture.svg", "picture.txt"


def write(run_dir: Path) -> str:
    """Write both and return the text. Raises `UsageError` for a run without consumers, `HistoryError` for a damaged one."""
    found = picture.of_run(run_dir)
    if found is None:
        raise UsageError(f"{run_dir} is a run of a Spark job: only runs of consumers have a picture")
    text = picture_text.render(found)
    try:
        run_files.write_text(run_dir / SVG, picture_svg.render(found))
        run_files.write_text(run_dir / TEXT, text + "\n")
    except OSError as refused:
        raise run_dir_problem(refused, run_dir) from refused
    return text
