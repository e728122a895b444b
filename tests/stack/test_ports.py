"""Leased ports are free, below the ephemeral range, and never the same for two runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import PortLease, lease


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_default_ports_are_below_the_ephemeral_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEPROOF_PORTS", raising=False)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with Owner() as owner:
        ports = lease(owner, 20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < low for port in ports)


def test_two_leases_share_no_port_and_too_few_ports_are_an_error_with_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = _free_range(4)
    monkeypatch.setenv("ONCEPROOF_PORTS", f"{first}-{last}")
    held = PortLease.take(3)
    with pytest.raises(EnvironmentProblem) as error:
        PortLease.take(2)
    assert f"fewer than 2 free ports in {first}-{last}: 3 leased by other runs, 0 in use, 1 free" in str(error.value)
    assert "ONCEPROOF_PORTS" in str(error.value)
    other = PortLease.take(1)
    assert set(other.ports).isdisjoint(held.ports), "a failed lease must release the ports that it had taken"
    other.release()
    held.release()
    PortLease.take(4).release()


def test_a_lease_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = _free_range(2)
    monkeypatch.setenv("ONCEPROOF_PORTS", f"{first}-{last}")
    with Owner() as owner:
        lease(owner, 2)
        with pytest.raises(EnvironmentProblem, match="2 leased by other runs"):
            PortLease.take(1)
    PortLease.take(2).release()


def test_another_process_cannot_lease_a_leased_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, last = _free_range(2)
    monkeypatch.setenv("ONCEPROOF_PORTS", f"{first}-{last}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    held = PortLease.take(2)
    script = "from onceproof.stack.processes.ports import PortLease; PortLease.take(1)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=False)
    assert "2 leased by other runs" in other.stderr
    held.release()


def test_a_port_in_use_is_counted_as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("ONCEPROOF_PORTS", f"{port}-{port}")
        with pytest.raises(EnvironmentProblem, match="0 leased by other runs, 1 in use"):
            PortLease.take(1)


@pytest.mark.parametrize("bad", ["", "21000", "22000-21000", "80-90", "21000-99999", "a-b"])
def test_the_error_for_a_bad_range_quotes_it(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_PORTS", bad)
    with pytest.raises(UsageError) as error:
        PortLease.take(1)
    assert repr(bad) in str(error.value)


def test_a_lock_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"onceproof-ports-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentProblem, match="is a link or belongs to another user"):
        PortLease.take(1)


def _free_range(size: int) -> tuple[int, int]:
    """Adjacent ports that are free now, outside the range from which real runs lease theirs."""
    for first in range(64_000, 65_400, size):
        sockets = []
        try:
            for port in range(first, first + size):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return first, first + size - 1
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free adjacent ports")
