"""The command `serve`: an index of runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import EXIT_CODES
from onceproof.cli.output import Output, failing_well

#: In no list of well-known ports, and fixed, so that a bookmark works.
PORT = 8765

commands = typer.Typer()


@commands.command(epilog=EXIT_CODES, rich_help_panel="Understand a finding")
def serve(
    runs_dir: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="The folder of the run directories.")] = Path(
        "onceproof-runs"
    ),
    port: Annotated[
        int, typer.Option(metavar="N", help="Port on 127.0.0.1; 0: any free one.", min=0, max=65535)
    ] = PORT,
    show: Annotated[bool, typer.Option("--open", help="Open the index in the browser.")] = False,
) -> None:
    """Show an index of all runs in the browser, until Ctrl-C.

    It has filters, follows runs in progress, and leads to the page of each run
    and qualification. Only your user can reach it, on this machine, and it
    changes nothing.

    \b
    onceproof serve
    onceproof serve onceproof-runs --port 9000 --open
    """
    with failing_well() as output:
        _serve(runs_dir, port, show, output)


def _serve(runs_dir: Path, port: int, show: bool, output: Output) -> None:
    import threading
    import webbrowser

    from onceproof.base.errors import Interrupted
    from onceproof.serve.server import Server

    with Server(_folder(runs_dir), port) as server:
        output.say(f"serving    {runs_dir}\naddress    {server.address}\nend        Ctrl-C")
        if show:  # in a thread: a browser in the terminal returns only when it is closed
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        try:
            server.serve_forever()
        except Interrupted as end:  # this is how it ends: nothing to complain about
            raise typer.Exit(end.exit_code) from None


def _folder(runs_dir: Path) -> Path:
    from onceproof.base import paths
    from onceproof.base.errors import UsageError
    from onceproof.history.run_record import FILE

    hint = "name the folder in which `onceproof run` creates run directories"
    if not paths.exists(runs_dir):
        raise UsageError(f"{str(runs_dir)!r} does not exist", hint=hint)
    if not paths.is_folder(runs_dir):
        raise UsageError(f"{str(runs_dir)!r} is not a folder", hint=hint)
    if paths.exists(runs_dir / FILE):
        parent = runs_dir.resolve().parent
        raise UsageError(f"{str(runs_dir)!r} is a run, not a folder of runs", hint=f"onceproof serve {parent}")
    return runs_dir.resolve()
