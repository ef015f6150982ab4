"""One client per process and configuration.

Spark reuses its Python workers, so a connection that outlives a task saves time in the next one. A
forked worker makes its own client. The configuration comes from the driver; an executor's rack
(JETSTREAM_RACK, for readFrom=nearest) comes from the executor's environment.

After that, the worker's garbage collector ignores everything loaded so far. Spark collects garbage
after every task, and reading makes enough objects for Python to collect in between. Each collection
would go over all loaded modules, for tens of milliseconds.
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
        gc.collect()  # Garbage that exists now would stay for ever.
        gc.freeze()
    return _clients[key]
