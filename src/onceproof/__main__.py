"""The program ``onceproof``, also as ``python -m onceproof``: sets up standard streams, signals and the exit code."""

from __future__ import annotations

import sys

from onceproof.base.errors import Interrupted
from onceproof.base.signals import ignore, interruptible, uninterrupted
from onceproof.base.standard_streams import StandardStreams, where_kept

#: Exit codes that are verdicts about a job. They are replaced if the result could not be printed.
_VERDICTS = (0, 1, 3)


def main() -> None:
    """Run the command line, and exit with its code."""
    streams = StandardStreams()
    code = 0
    try:
        with interruptible():
            # Imported here, so that a signal ends the program in order, and uninterrupted, because Python would turn a signal
            # that comes while a class is created into another error.
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
        where = "".join(f"\n  the verdict is in {run_dir / 'verdict.json'}" for run_dir in where_kept())
        sys.stderr.write(f"error: {problem}{where}\n")
        code = 4
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
