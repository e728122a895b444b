"""What the server refuses, and that a foreign run can neither lead it elsewhere nor execute script."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.reports.html import files, page
from onceproof.reports.html.run_page import of_run
from onceproof.serve import peer, server
from onceproof.serve.index import link_to
from onceproof.serve.site import Site

from .conftest import DUPLICATE, HELD, VIOLATED
from .made_up_runs import Client, client, events, made, runs_dir
from .test_html import HOSTILE, Parsed

__all__ = ["client", "runs_dir"]  # fixtures

PAGE = "/runs/good-1/report.html"


@pytest.fixture
def run(runs_dir: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret.log").write_text("SECRET")
    (runs_dir / "secret.jsonl").write_text("SECRET")
    return made(runs_dir / "good-1", HELD)


def raw(client: Client, text: str) -> str:
    """The whole answer to these bytes."""
    with closing(socket.create_connection(("127.0.0.1", client.port), timeout=20)) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode("latin-1"))
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
@pytest.mark.parametrize("path", ["/", "/state.json", PAGE, "/runs/good-1/logs/driver-0.log"])
def test_a_request_for_another_host_is_refused(client: Client, run: Path, host: str, path: str) -> None:
    reply = client.get(path, host=host.format(port=client.port) or " ")
    assert reply.status == 403 and "good" not in reply.text


def test_a_request_without_a_host_or_with_two_is_refused(client: Client, run: Path) -> None:
    own = f"Host: 127.0.0.1:{client.port}\n"
    assert " 200 " in raw(client, f"GET / HTTP/1.1\n{own}\n")
    assert " 200 " in raw(client, f"GET / HTTP/1.1\nHost: localhost:{client.port}\n\n")
    for head in ("GET / HTTP/1.1\n", "GET / HTTP/1.0\n", f"GET / HTTP/1.1\n{own}Host: evil.example\n"):
        assert " 403 " in raw(client, f"{head}\n")
    assert "good" not in raw(client, "GET /\n\n")
    assert " 400 " in raw(client, "GET http:" + f"//evil.example/ HTTP/1.1\n{own}\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_only_get_and_head_are_answered(client: Client, run: Path, method: str) -> None:
    reply = client.get(PAGE, method=method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert reply.headers["X-Content-Type-Options"] == "nosniff" and "text/plain" in reply.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/", "/state.json", PAGE, "/runs/good-1/logs/driver-0.log", "/nothing"])
def test_head_is_get_without_the_body(client: Client, run: Path, path: str) -> None:
    get, head = client.get(path), client.get(path, method="HEAD")
    assert head.body == b"" and head.status == get.status and get.body
    changing = ("Date", "Content-Length") if path == "/state.json" else ("Date",)
    assert {k: v for k, v in head.headers.items() if k not in changing} == {
        k: v for k, v in get.headers.items() if k not in changing
    }


@pytest.mark.parametrize("path", ["/", "/state.json", PAGE, "/runs/good-1/logs/driver-0.log", "/nothing", "/?text=<b>"])
def test_every_answer_has_a_policy_and_is_not_guessed_at(client: Client, run: Path, path: str) -> None:
    headers = client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert "onceproof" in headers["Server"] and "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "path",
    [
        "/runs",
        "/runs/",
        "/runs/good-1",
        "/runs/good-1/",
        "/runs/good-1/run.json",
        "/runs/good-1/logs",
        "/runs/good-1/logs/",
        "/runs/good-1/logs/..",
        "/runs/good-1/logs/../run.json",
        "/runs/good-1/logs/%2e%2e/run.json",
        "/runs/good-1/logs/..%2frun.json",
        "/runs/good-1/logs/..%2f..%2f..%2fsecret.log",
        "/runs/good-1/logs/%252e%252e%252frun.json",
        "/runs/good-1/logs/%00",
        "/runs/good-1/logs/driver-0.log%00.html",
        "/runs/good-1/logs/" + "a" * 5000,
        "/runs/good-1/../secret.jsonl",
        "/runs/good-1/witnesses/../secret.jsonl",
        "/runs/../secret.log",
        "/runs/..%2f/logs/secret.log",
        "/runs/../logs/secret.log",
        "/runs/%2e%2e/report.html",
        "/runs/./report.html",
        "/runs//report.html",
        "/runs/something/else/good-1/report.html",
        "/runs/good-1/runs/..%2f..%2fgood-1/report.html",
        "/runs/good-1/runs/../report.html",
        "/runs/latest/report.html",
        "/runs/nothing/report.html",
        "/runs/notes.txt/report.html",
        "/runs/secret.jsonl",
        "//etc/passwd",
        "/..",
        "/%",
        "/favicon.ico",
        "/runs/good-1/report.html/",
        "/runs/\xff/report.html",
    ],
)
def test_nothing_else_is_served_and_no_folder_is_listed(client: Client, run: Path, path: str) -> None:
    answer = raw(client, f"GET {path} HTTP/1.1\nHost: 127.0.0.1:{client.port}\n\n")
    assert answer.startswith("HTTP/1.0 404 ") and "SECRET" not in answer and "driver-0" not in answer


@pytest.mark.parametrize("planted", ["runs", "run", "folder", "file"])
@pytest.mark.parametrize("name", ["report.html", "logs/secret.log", "witnesses/secret.jsonl"])
def test_no_link_is_followed(client: Client, run: Path, tmp_path: Path, planted: str, name: str) -> None:
    outside = made(tmp_path / "outside", replace(HELD, scenario="SECRET"))
    (outside / "witnesses").mkdir()
    for file in ("report.html", "logs/secret.log", "witnesses/secret.jsonl"):
        (outside / file).write_text("SECRET")
    folder, _, file = name.rpartition("/")
    link, target = {
        "runs": (run / "runs", tmp_path),
        "run": (run.parent / "linked-1", outside),
        "folder": (run / (folder or "history"), outside / folder),
        "file": (run / folder / file, outside / name),
    }[planted]
    link.parent.mkdir(exist_ok=True)
    if link.is_dir():
        link.rename(run / "away")
    link.symlink_to(target)
    path = {"runs": "/runs/good-1/runs/outside/", "run": "/runs/linked-1/"}.get(planted, "/runs/good-1/")
    reply = client.get(path + name)
    assert "SECRET" not in reply.text
    assert reply.status == (
        403 if planted == "folder" and not folder else 200 if (planted, folder) == ("file", "") else 404
    )


def test_a_pipe_in_place_of_a_log_does_not_block(client: Client, run: Path) -> None:
    os.mkfifo(run / "logs" / "pipe.log")
    os.mkfifo(run / "report.html")
    assert client.get("/runs/good-1/logs/pipe.log").status == 404
    assert client.get(PAGE).status == 200


def test_a_log_is_plain_text_in_a_sandbox(client: Client, run: Path) -> None:
    (run / "logs" / "a b%.html").write_text("<script>alert(1)</script>")
    reply = client.get("/runs/good-1/logs/a%20b%25.html")
    assert reply.text == "<script>alert(1)</script>" and reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
    (run / "logs" / "large.log").write_bytes(b"x" * 300_000)
    assert client.get("/runs/good-1/logs/large.log").body == b"x" * 300_000


def test_the_stored_page_is_sent_and_is_rendered_if_there_is_none(client: Client, run: Path) -> None:
    rendered = client.get(PAGE)
    assert rendered.status == 200 and rendered.text == of_run(run) and not (run / "report.html").exists()
    stored = files.write(run).read_text().replace("every claim held", "as it was stored")
    (run / "report.html").write_text(stored)
    assert client.get(PAGE).text == stored
    policy = rendered.headers["Content-Security-Policy"]
    assert policy == f"{page.policy()}; frame-ancestors 'none'; sandbox allow-scripts"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "<script>alert(1)</script>",
        lambda text: text.replace("<title>", '<META HTTP-EQUIV="refresh" content="0;url=//evil.example"><title>'),
        lambda text: text.replace("default-src &#39;none&#39;", "default-src *"),
        lambda text: f" {text}",
        lambda text: text.replace("sha256-", "sha256-x", 1),
        lambda text: text + "x" * 5_000_000,
        lambda text: text.encode("utf-16"),
        lambda text: text.encode() + b"\xff",
        lambda text: "",
    ],
)
def test_a_stored_page_that_is_not_ours_is_rendered_again(client: Client, run: Path, change: Any) -> None:
    ours = files.write(run).read_text()
    changed = change(ours)
    (run / "report.html").write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    assert client.get(PAGE).text == ours
    assert (run / "report.html").read_bytes() == (changed if isinstance(changed, bytes) else changed.encode())


def test_a_run_that_holds_links_is_listed_and_not_shown(client: Client, run: Path, tmp_path: Path) -> None:
    (run / "history").symlink_to(tmp_path)
    assert "history is a symbolic link" in client.get("/").plain
    reply = client.get(PAGE)
    assert reply.status == 403 and "symbolic link" in reply.text and "text/plain" in reply.headers["Content-Type"]


def test_hostile_text_does_nothing(client: Client, runs_dir: Path) -> None:
    text = "".join(HOSTILE).replace("\ud800", "")
    finding = replace(DUPLICATE, anomaly=text, output=text, summary=text)
    names = [
        '"><img src=x onerror=alert(1)>',
        "<script>alert(1)<",
        "a'b&c;%2e%2e?x#y",
        "\udcff\x1b[31m",
        "javascript:alert(1)",
    ]
    for name in names:
        made(runs_dir / name, replace(VIOLATED, scenario=text, reasons=(text,), findings=(finding,)))
    now = made(runs_dir / "<b>now", None, scenario={"name": text})
    events(
        now, {"at": 1.0, "kind": "phase", "name": text}, {"at": 1, "kind": "batch.committed", "query": text, "batch": 1}
    )
    reply = client.get("/")
    parsed = Parsed(reply.text)
    assert {tag: len(parsed.all(tag)) for tag in ("script", "style", "img", "b", "iframe", "svg")} == {
        **dict.fromkeys(("img", "b", "iframe", "svg"), 0),
        "script": 1,
        "style": 1,
    }
    assert not [a for _, a in parsed.tags if any(name.startswith("on") or name == "style" for name in a)]
    links = [str(link["href"]) for link in parsed.all("a")]
    assert all(re.fullmatch(r"/runs/[\w.%~-]+/report\.html|#main|/", link, re.ASCII) for link in links)
    assert {link_to(name, "report.html") for name in names} <= set(links)
    assert "\x1b" not in reply.text and "\\x1b[31m" in reply.text and "alert(1)" in parsed.text
    for link in links[1:]:
        assert client.get(link).status == 200, link
    assert "\u202e" not in client.get("/state.json").text


def test_the_index_runs_only_its_own_script_and_asks_only_its_server(client: Client, run: Path) -> None:
    reply = client.get("/")
    (policy,) = [m["content"] for m in Parsed(reply.text).all("meta") if m.get("http-equiv")]
    (script,) = re.findall(r"<script>(.*?)</script>", reply.text, re.DOTALL)
    assert policy == page.policy(live=True) and page._hash(script) in policy
    assert "connect-src 'self'; form-action 'self'" in policy and "script.js" not in script
    assert reply.headers["Content-Security-Policy"] == f"{policy}; frame-ancestors 'none'"
    assert len(script) < 3000 and not re.findall(r'(?:src|href)="(?!/|#)', reply.text)


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1
   1: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 2 1
   2: 0100007F:C001 0100007F:1F40 01 00000000:00000000 00:00000000 00000000  {uid}        0 3 1
   3: broken
"""
TABLE_6 = """  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000100007F:C001 0000000000000000FFFF00000100007F:1F40 01 0:0 0:0 0  {uid}  0 4 1
"""


@pytest.mark.parametrize(("uid", "foreign"), [(os.getuid(), False), (0, False), (os.getuid() + 4242, True)])
@pytest.mark.parametrize("text", [TABLE, TABLE_6])
def test_another_user_is_recognised(tmp_path: Path, uid: int, foreign: bool, text: str) -> None:
    (tmp_path / "tcp").write_text(text.format(uid=uid))
    tables = (tmp_path / "missing", tmp_path / "tcp")
    assert peer.is_foreign(("127.0.0.1", 0xC001), 8000, tables) is foreign
    assert peer.is_foreign(("127.0.0.1", 0xC001), 8000, tables[:1]) is False, "the kernel shows nothing"
    assert peer.is_foreign(("127.0.0.1", 0xC002), 8000, tables) is True, "the kernel shows others, and not this one"
    assert peer.is_foreign(("127.0.0.2", 0xC001), 8000, tables) is True


def test_another_user_is_refused(client: Client, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(server, "is_foreign", lambda *ends: asked.append(ends) or True)
    reply = client.get(PAGE)
    assert reply.status == 403 and "only the user who started it" in reply.text
    assert asked[0][1] == client.port
    monkeypatch.undo()
    owner = peer._owner
    monkeypatch.setattr(peer, "_owner", lambda *given: asked.append(owner(*given)) or asked[-1])
    assert client.get("/").status == 200 and asked[-1] == (os.getuid(), True), "the kernel says who it is"


def test_a_client_at_another_address_of_the_loopback_network_is_refused(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), source_address=("127.0.0.2", 0)) as other:
        other.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nConnection: close\r\n\r\n".encode())
        assert b" 403 " in other.recv(1000)


def test_a_defect_is_an_answer_too(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Site, "_list", lambda *_: 1 / 0)
    assert client.get("/").status == 500
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_it_listens_on_loopback_only(client: Client) -> None:
    with server.Server(Path(), 0) as another:
        assert another.socket.getsockname()[0] == "127.0.0.1"
        assert another.address == f"http://127.0.0.1:{another.server_port}/"


def test_a_folder_that_goes_away_is_reported(client: Client, runs_dir: Path) -> None:
    runs_dir.rename(runs_dir.with_name("away"))
    assert client.get("/").status == 404


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["nowhere"], 2, "'nowhere' does not exist"),
        (["notes.txt"], 2, "'notes.txt' is not a folder"),
        (["good-1"], 2, "is a run, not a folder of runs"),
        ([".", "--port", "{taken}"], 4, "it is in use"),
        ([".", "--port", "65536"], 2, "--port"),
        ([], 2, "'onceproof-runs' does not exist"),
    ],
)
def test_wrong_usage_is_refused(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, part: str
) -> None:
    monkeypatch.chdir(run.parent)
    done = CliRunner().invoke(app, ["serve", *(one.format(taken=client.port) for one in arguments)])
    assert done.exit_code == code and part in " ".join(done.output.split()), done.output
    assert "Traceback" not in done.output


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and the address that it printed."""
    command = [sys.executable, "-m", "onceproof", "serve", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(run: Path, number: signal.Signals) -> None:
    with started(str(run.parent), "--port", "0") as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert connection.recv(15).startswith(b"HTTP/1.0 200")
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "") and "Traceback" not in out
