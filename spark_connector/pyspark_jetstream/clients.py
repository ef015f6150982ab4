"""One client per process and configuration.

Spark reuses its Python workers, so a connection that outlives a task saves time in the next one. A
forked worker makes its own client. The configuration comes from the driver; an executor's rack
(JETSTREAM_RACK, for readFrom=nearest) comes from the executor's environment.

After that, the worker's garbage collector ignores everything loaded so far. Spark collects garbage
after every task, and reading makes enough objects for Python to collect in between. Each collection
would go over all loaded modules, for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from jetstream_client import AsyncClient, Client, ClientConfig, UnavailableError

_T = TypeVar("_T")

REFUSED_SECONDS = 5.0
"""How long the driver asks servers of which none has answered yet: as long as one restarts. A task
is more patient, because the driver has met them."""

RETRY_SECONDS = 0.2

_clients: dict[tuple[int, ClientConfig], Client] = {}


def client_for(config: ClientConfig) -> Client:
    config = replace(config, rack=os.environ.get("JETSTREAM_RACK", config.rack))
    key = (os.getpid(), config)
    if key not in _clients:
        _clients[key] = Client.from_config(config)
        gc.collect()  # Garbage that exists now would stay for ever.
        gc.freeze()
    return _clients[key]


async def asked_now(config: ClientConfig, ask: Callable[[AsyncClient], Awaitable[_T]]) -> _T:
    """What `ask` returns of a client of its own, on the driver. Raises UnavailableError soon if all
    servers refuse connections."""
    until = time.monotonic() + REFUSED_SECONDS
    while True:
        try:
            async with AsyncClient.from_config(
                replace(config, retry_on_failed_connect=False)
            ) as client:
                return await ask(client)
        except UnavailableError:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(RETRY_SECONDS)
