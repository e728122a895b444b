"""Drops packets on the way through a proxy, in one direction or both; connections stay open, and no side gets an error."""

from __future__ import annotations

from onceproof.base.words import times
from onceproof.stack.api import Lost, NotesRequests, Proxy, Stream

PACKETS_DROPPED = "its packets were dropped"
"""How a service was cut off, as a clause of evidence."""


def drop_packets(proxy: Proxy, lost: Lost = "both", *, it_connects: bool = False) -> None:
    """From now on drop these packets of the service that is cut off, until `Proxy.heal`.

    The service is the one behind the proxy or, with ``it_connects``, the client that connects through it.
    """
    to_it: Stream = "downstream" if it_connects else "upstream"
    from_it: Stream = "upstream" if it_connects else "downstream"
    for stream in {"both": (to_it, from_it), "to-it": (to_it,), "from-it": (from_it,)}[lost]:
        proxy.add_toxic("timeout", stream, timeout=0)  # without a timeout, Toxiproxy drops the bytes and closes nothing


def begin_noting(proxy: Proxy) -> None:
    """From now on note the clients that need an answer. Called after the packets are dropped, so that each of them lost something."""
    assert isinstance(proxy, NotesRequests), "the fault asks for the protocol proxy"
    proxy.note_requests()


def requests_of(proxy: Proxy) -> str:
    """Which clients needed an answer since `begin_noting`, as a clause of evidence; empty if none did."""
    assert isinstance(proxy, NotesRequests), "the fault asks for the protocol proxy"
    found = sorted(proxy.requesting())
    return (
        f"{times(len(found), 'connection')} sent a request or waited for an answer ({', '.join(found[:3])})"
        if found
        else ""
    )
