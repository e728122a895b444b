"""The images of compose.yaml, for tests that use a real daemon."""

from __future__ import annotations

import os

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.compose import images
from onceproof.stack.compose.daemon import client, compose_command
from onceproof.stack.fetch import components


@pytest.fixture(scope="session")
def built() -> None:
    """The images, built here. Where containers are demanded (`tox -e compose`), their absence is an error."""
    try:
        client()
        compose_command()
        # Always: the image of Spark has onceproof's own sinks, and the daemon repeats only what has changed.
        base = os.environ.get("ONCEPROOF_TEST_BASE", "debian:bookworm-slim")
        list(images.build(base, components.ensure()))
        images.build_spark(base)
    except EnvironmentProblem as missing:
        if "ONCEPROOF_CONTAINERS" in os.environ:
            raise
        pytest.skip(str(missing))
