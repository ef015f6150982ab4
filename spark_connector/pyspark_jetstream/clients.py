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
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from jetstream_client import AsyncClient, Client, ClientConfig, UnavailableError

_T = TypeVar("_T")

REFUSED_SECONDS = 5.0
"""How long the driver asks servers of which none has answered yet: as long as one restarts. A task
is more patient, because the driver has met them."""

RETRY_SECONDS = 0.2

CLIENTS_MAX = 8
"""So many clients a worker keeps: more than a task uses, and configurations may change for months,
for example by a new token."""

_clients: OrderedDict[tuple[int, ClientConfig], Client] = OrderedDict()
"""The one that was used last is the last one."""


def client_for(config: ClientConfig) -> Client:
    config = replace(config, rack=os.environ.get("JETSTREAM_RACK", config.rack))
    key = (os.getpid(), config)
    if key in _clients:
        _clients.move_to_end(key)
        return _clients[key]
    while len(_clients) >= CLIENTS_MAX:
        (process, _), unused = _clients.popitem(last=False)
        if process == os.getpid():  # Those of the parent are not the fork's to close.
            unused.close()
    client = _clients[key] = Client.from_config(config)
    gc.collect()  # Garbage that exists now would stay for ever.
    gc.freeze()
    return client


async def asked_now(config: ClientConfig, ask: Callable[[AsyncClient], Awaitable[_T]]) -> _T:
    """What `ask` returns of its own client, on the driver. Raises UnavailableError soon if all
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
