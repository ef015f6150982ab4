"""One client per process and configuration.

Spark uses its Python workers again and again: a connection that outlives a task saves the next
one the way. A worker that was forked makes its own. The configuration comes from the driver; where
an executor stands (JETSTREAM_RACK, for readFrom=nearest) it knows itself.

A worker that has made one is told to collect no more what it has loaded. Spark collects garbage
after every task, and reading makes enough objects for Python to do so in between: each time over
all the modules there are, for tens of milliseconds.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace

from jetstream_client import Client, ClientConfig

_clients: dict[tuple[int, ClientConfig], Client] = {}


def client_for(config: ClientConfig) -> Client:
    config = replace(config, rack=os.environ.get("JETSTREAM_RACK", config.rack))
    key = (os.getpid(), config)
    if key not in _clients:
        _clients[key] = Client.from_config(config)
        gc.collect()  # What is garbage now would stay.
        gc.freeze()
    return _clients[key]
