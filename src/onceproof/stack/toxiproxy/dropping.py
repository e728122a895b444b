"""Drops packets on the way through a proxy, in one direction or both; connections stay open, and no side gets an error."""

from __future__ import annotations

from onceproof.stack.api import Lost, Proxy, Stream

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
