"""The clients of an executor's Python workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from jetstream_client import ClientConfig
from pyspark_jetstream.clients import client_for

config = ClientConfig.of("localhost:1")
client = client_for(config)
frozen = gc.get_freeze_count()
assert client_for(config) is client, "another task has a client of its own"
assert frozen > 10_000, f"{frozen} objects are never looked at again"
assert gc.get_freeze_count() == frozen, "what tasks make is frozen, too"
"""

MANY = """
import os
from jetstream_client import ClientConfig, InvalidRequestError
from pyspark_jetstream.clients import CLIENTS_MAX, _clients, client_for

def config(number):
    return ClientConfig.of("localhost:1", token=f"token-{number}")

def is_closed(client):
    try:
        client.list_tokens()
    except InvalidRequestError as error:
        return "closed" in str(error)
    except Exception:
        return False

kept, first = client_for(config(0)), client_for(config(1))
for number in range(2, 3 * CLIENTS_MAX):
    client_for(config(number))
    assert client_for(config(0)) is kept, "one that is in use is let go"
assert len(_clients) == CLIENTS_MAX
assert is_closed(first), "one that nobody uses any more is not closed"
assert not is_closed(kept)

_clients.clear()
_clients[os.getpid() - 1, config(0)] = kept  # As a fork finds it.
for number in range(2 * CLIENTS_MAX):
    client_for(config(number))
assert len(_clients) == CLIENTS_MAX
assert not is_closed(kept), "a fork closes its parent's client"
"""


def test_a_worker_keeps_its_client_and_collects_no_more_what_it_has_loaded() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_a_worker_whose_configuration_changes_again_and_again_keeps_a_few_clients() -> None:
    subprocess.run([sys.executable, "-c", MANY], check=True, timeout=120)
