"""The runs that are shown: commands typed at a real server, and the failover of a real cluster."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from examples.flights.server import DevServer
from jetstream_client import Client

ORDERS = 500_000
REGIONS = ("eu", "us", "eu", "asia", "eu", "us")
QUESTION = (
    "select subject, count(*) as orders,\n"
    "      round(avg((decode(value)->>'$.price')::double), 2) as price\n"
    "    from orders group by subject order by orders desc"
)
TYPED = (
    ["jetstream", "sql", QUESTION],
    ["jetstream", "publish", "orders.asia", '{"price": 19.99}'],
    ["jetstream", "sql", "select count(*) as orders from orders"],
)
DEMO = ["scripts/cluster", "demo"]
RATE = 1_000
"""What the demonstration has by itself."""


def sql(folder: Path, orders: int = ORDERS) -> str:
    """A stream that is filled, asked, published to, and asked again."""
    server = DevServer(folder)
    server.start()
    try:
        with Client(server.grpc) as client:
            client.create_stream("orders", subject="orders.>")
            fill(client, orders)
        return "\n".join(typed(command, server.grpc) for command in TYPED)
    finally:
        server.stop()


def fill(client: Client, orders: int) -> None:
    """Orders that are the same in every run."""
    for region in sorted(set(REGIONS)):
        values = [
            json.dumps({"id": number, "price": number * 7919 % 10_000 / 100}).encode()
            for number in range(orders)
            if REGIONS[number % len(REGIONS)] == region
        ]
        with client.publisher(f"orders.{region}") as publisher:
            publisher.publish_many(values)


def typed(command: list[str], servers: str) -> str:
    """The command as a person types it, and what it prints."""
    executable = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [executable, *command[1:]],
        env={**os.environ, "JETSTREAM_SERVERS": servers},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"$ {' '.join(map(shown, command))}\n{done.stdout.rstrip()}"


def shown(word: str) -> str:
    """Quoted for the shell, so that one can read it."""
    if "'" in word and not set(word) & set('"!`\\'):
        return '"' + word.replace("$", "\\$") + '"'
    return shlex.quote(word)


def failover(rate: int = RATE) -> str:
    """A leader killed under load. rate: messages a second."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.cluster", *DEMO[1:], "--rate", str(rate)],
        env={**os.environ, "COLUMNS": "90"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout)
    said = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"$ {' '.join(DEMO)}\n{said}"
