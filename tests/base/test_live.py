"""The live display: one panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from onceproof.base.live import Display, shared
from onceproof.stack.fetch.progress import Progress

LONG = "crash driver, batch 2, after-sink-commit of a query with a long name: struck, not healed yet " * 2
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def console(width: int, *, terminal: bool = True, **environment: str) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=terminal or None, width=width, _environ={"TERM": "xterm", **environment}
    )


def shown(drawn: Console) -> str:
    assert isinstance(drawn.file, io.StringIO)
    return drawn.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_panel_fits_the_width_and_loses_nothing(width: int) -> None:
    drawn = console(width, NO_COLOR="1")
    with Display(drawn, "mine " + "x" * 100) as display:
        display.count(limit_s=90)
        display.begin("kafka", 7)
        display.step("kafka")
        display.show(phase="running", fault=LONG)
        drawn.print(display.panel())
    panel = ESCAPES.sub("", shown(drawn))
    assert max(map(len, panel.splitlines())) <= min(width, 100)
    words = panel.replace("\u2502", " ").split()
    assert [word for word in LONG.split() if word not in words] == []
    assert "1 of 7" in " ".join(words) and "0:00 used, 1:30 left of 1:30" in " ".join(words)


def test_no_color_leaves_no_colour() -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        drawn = console(80, COLORTERM="truecolor", **environment)
        with Display(drawn, "mine") as display:
            display.show(phase="running")
            display.say("a fault", "bold yellow")
        assert bool(re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", shown(drawn))) is coloured


@pytest.mark.parametrize("environment", [None, {"TERM": "dumb"}])
def test_without_a_terminal_there_are_only_lines(environment: dict[str, str] | None) -> None:
    drawn = console(80, terminal=environment is not None, **(environment or {}))
    with Display(drawn, "mine") as display:
        display.show(phase="running")
        display.begin("kafka", 2)
        display.step("kafka")
        display.say("[bold]odd[/bold] \x1b[2J")
        display.end("kafka")
    lines = shown(drawn).splitlines()
    assert lines[:2] == ["kafka ...", "[bold]odd[/bold] \\x1b[2J"]
    assert re.fullmatch(r"kafka: done in \d\.\d s", lines[2]) and len(lines) == 3


def test_the_panel_is_gone_at_the_end() -> None:
    drawn = console(80)
    with Display(drawn, "mine") as display:
        display.show(phase="running")
    assert shown(drawn).rstrip("\n").endswith("\x1b[2K"), "its last line was erased"
    display.show(phase="after the end")
    assert "after the end" not in shown(drawn)


def test_what_is_fetched_appears_in_the_panel_that_is_open() -> None:
    drawn = console(80)
    with Display(drawn, "mine") as display, Progress(show=True) as fetching:
        with fetching.doing("kafka", 7) as step:
            step()
            drawn.print(display.panel())
        assert "kafka" not in str(display.panel().renderable)
    assert "kafka: 1 of 7" in shown(drawn) and "done in" not in shown(drawn)


def test_a_fetch_of_its_own_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(show=True) as fetching, fetching.doing("kafka", 1):
        pass
    with Progress(show=False) as silent, silent.doing("quiet", 1):
        silent.say("nothing")
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("kafka ...\nkafka: done in ") and "quiet" not in printed.err


def test_displays_are_closed_in_turn() -> None:
    with Display(console(80), "outer") as outer:
        with Display(console(80), "inner") as inner, shared("x") as found:
            assert found is inner
        with shared("x") as found:
            assert found is outer


def test_threads_may_report_while_it_draws() -> None:
    with Display(console(80), "mine") as display:

        def work(name: str) -> None:
            display.begin(name, 50)
            for number in range(50):
                display.step(name)
                display.show(batch=str(number))
                display.say(name)
            display.end(name)

        threads = [threading.Thread(target=work, args=(f"part {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_on_a_real_terminal(encoding: str) -> None:
    script = """
import sys
from onceproof.base.standard_streams import StandardStreams
StandardStreams()
from rich.console import Console
from onceproof.base.live import Display
with Display(Console(highlight=False, emoji=False), "mine") as display:
    display.count(60)
    display.show(phase="running")
    display.say("a line")
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "PYTHONIOENCODING": encoding, "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        read = b""
        try:
            while part := os.read(ours, 4096):
                read += part
        except OSError:  # its other end is closed
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    text = ESCAPES.sub("", read.decode(encoding))
    assert "a line" in text and "phase running" in text and "1:00 left of 1:00" in text
    assert ("\u256d" if encoding == "utf-8" else "+-") in text
