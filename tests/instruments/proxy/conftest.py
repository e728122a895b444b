from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from onceproof.instruments.proxy.loop import ProxyLoop

from .echo import Echo, Proxied


@pytest.fixture(scope="module")
def loop() -> Iterator[ProxyLoop]:
    loop = ProxyLoop()
    yield loop
    loop.close()
    assert loop.failures == []


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def kafka(loop: ProxyLoop, echo: Echo) -> Iterator[Proxied]:
    proxied = Proxied(loop, echo.port, "kafka")
    yield proxied
    proxied.proxy.cut()


@pytest.fixture
def postgres(loop: ProxyLoop, echo: Echo) -> Iterator[Proxied]:
    proxied = Proxied(loop, echo.port, "postgres")
    yield proxied
    proxied.proxy.cut()
