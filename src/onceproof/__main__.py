"""The program ``onceproof``, also as ``python -m onceproof``: its standard streams, its signals and its exit code."""

from __future__ import annotations

import sys

from onceproof.base.errors import Interrupted
from onceproof.base.signals import ignore, interruptible, uninterrupted
from onceproof.base.standard_streams import StandardStreams, where_kept

#: Exit codes that say something about a job: none of them may come of a result that nobody could read.
_VERDICTS = (0, 1, 3)


def main() -> None:
    """Run the command line, and exit with its code."""
    streams = StandardStreams()
    code = 0
    try:
        with interruptible():
            # Imported here, and whole: a signal then still ends the program in order. Python would turn one that came while a
            # class is being made into an error of its own.
            with uninterrupted("loading the program"):
                from onceproof.cli.app import app

            app()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 2
    except Interrupted as interrupted:
        sys.stderr.write(f"{interrupted}\n")
        code = interrupted.exit_code
    ignore()
    problem = streams.problem()
    if problem is not None and code in _VERDICTS:
        where = "".join(f"\n  the verdict is in {run / 'verdict.json'}" for run in where_kept())
        sys.stderr.write(f"error: {problem}{where}\n")
        code = 4
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
