"""``doctor`` and ``cleanup``: what is on this machine, and what a killed onceproof left on it."""

from __future__ import annotations

import json
from dataclasses import asdict


def examined(as_json: bool) -> tuple[str, bool]:
    """What `onceproof.stack.doctor` found, and whether everything is there."""
    from onceproof.stack.doctor import examine

    checks = examine()
    healthy = all(check.ok for check in checks)
    if as_json:
        return json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}), healthy
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.ok else 'MISSING'}  {check.name}: {check.found}")
        if check.fix and not check.ok:
            lines.append(f"         fix: {check.fix}")
    lines.append("ready to run" if healthy else "not ready: fix what is MISSING above")
    return "\n".join(lines), healthy


def cleaned(dry_run: bool, as_json: bool, stack: str | None = None) -> str:
    """What was removed: from this machine or, with ``stack``, from the services of that profile."""
    if stack is None:
        from onceproof.stack.cleanup import clean_up

        done = clean_up(dry_run=dry_run)
    else:
        from onceproof.stack.profiles import clean_up_stack

        done = clean_up_stack(stack, dry_run=dry_run)
    if as_json:
        return json.dumps({"dry_run": dry_run, "done": done})
    if done:
        return "\n".join(done)
    nothing = "nothing was left behind"
    return nothing if stack is None else f"{nothing} on stack {stack} (`onceproof cleanup` looks on this machine)"
