"""Does the object store keep its promise about conditional writes? Writers race for each of many keys with ``If-None-Match: *``.

``python benchmarks/conditional_put.py`` starts the object store of a run. For each of 1,000 keys two writers put at the same
moment; exactly one may succeed, and the object must hold what that one wrote. An answer other than success and "exists
already" decides nothing, and is only counted (with many writers the store asks some to try again). Only then is Spark to blame if two drivers both
believe that they have written a log entry.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import obstore
from measure import machine
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceproof.stack.fetch import components
from onceproof.stack.object_store.server import EmbeddedObjectStore
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.server import ToxiproxyServer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--keys", type=int, default=1000)
parser.add_argument("--writers", type=int, default=2)


def race(store: S3Store, keys: int, writers: int) -> tuple[Counter[int], int, Counter[str]]:
    """How many writers won each key (number of winners -> keys), keys that hold a loser's content, and other errors."""
    won: list[list[int]] = [[] for _ in range(keys)]
    errors: Counter[str] = Counter()
    start = threading.Barrier(writers)

    def write(me: int) -> None:
        for key in range(keys):
            start.wait()
            try:
                obstore.put(store, f"race/{key}", str(me).encode(), mode="create")
                won[key].append(me)
            except AlreadyExistsError:
                pass
            except BaseError as error:
                errors[type(error).__name__] += 1

    threads = [threading.Thread(target=write, args=(me,)) for me in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [bytes(obstore.get(store, f"race/{key}").bytes()).decode() for key in range(keys)]
    wrong = sum(bool(winners) and content not in map(str, winners) for winners, content in zip(won, held, strict=True))
    return Counter(map(len, won)), wrong, errors


def main() -> int:
    args = parser.parse_args()
    print(machine(), flush=True)
    program, _ = components.ensure_object_store()
    with Owner() as owner, tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as logs:
        (port,) = lease(owner, 1)
        toxiproxy = ToxiproxyServer.start(owner, components.ensure_toxiproxy(), Path(logs) / "toxiproxy.log", port)
        # The writers race past the proxy.
        store = EmbeddedObjectStore.start(
            owner, program, Path(logs), lambda name, upstream: toxiproxy.create(name, lease(owner, 1)[0], upstream)
        )
        began = time.monotonic()
        winners, wrong, errors = race(store.bucket, args.keys, args.writers)
        seconds = time.monotonic() - began
    print(
        f"{args.keys} keys, {args.writers} writers each, {seconds:.0f} s: {winners[1]} keys with one winner, "
        f"{args.keys - winners[1]} with another number ({dict(winners)}), {wrong} with a loser's content, errors {dict(errors)}"
    )
    return 0 if winners == {1: args.keys} and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
