"""docs/web_services.md: its programs run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as HttpClient
from aiohttp.test_utils import TestServer as HttpServer
from google.protobuf.struct_pb2 import Value
from pydantic import BaseModel

from jetstream_client import (
    Client,
    ClientClosedError,
    NoStreamError,
    PermissionDeniedError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "web_services.md"
FORKS = """
import multiprocessing

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sorted(pool.map(take_order, [b'{"total": 0}'] * 6, chunksize=1)))
"""


def blocks(mark: str) -> list[str]:
    found = re.findall(rf"```python{mark}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, mark
    return found


@pytest.fixture(scope="module")
def names(server: ServerProcess) -> dict[str, Any]:
    """What the programs of the page define."""
    found: dict[str, Any] = {"__name__": "shop"}
    program = "\n".join(blocks("")).replace("localhost:9292", server.grpc)
    exec(compile(program, PAGE.name, "exec", dont_inherit=True), found)
    return found


@pytest.fixture
def client(client: Client) -> Client:
    client.create_stream("shop", "shop.>", duplicate_window="1h")
    return client


def test_a_service_stores_an_order_once_and_says_what_is_wrong(
    names: dict[str, Any], client: Client
) -> None:
    async def walk() -> None:
        app = names["make_app"]()

        async def lose(request: web.Request) -> None:
            await request.app[names["CLIENT"]].publish("lost", b"")

        app.router.add_post("/lost", lose)
        async with HttpClient(HttpServer(app)) as http:
            headers = {"Idempotency-Key": "a"}
            first = await http.post("/orders", data=b'{"total": 1}', headers=headers)
            again = await http.post("/orders", data=b'{"total": 1}', headers=headers)
            assert (first.status, await first.json()) == (201, await again.json())
            lost = await http.post("/lost")
            assert (lost.status, (await lost.json())["code"]) == (404, "no_stream")

    asyncio.run(walk())


def test_the_status_says_who_can_mend_it(names: dict[str, Any]) -> None:
    statuses = {
        ClientClosedError: 503, NoStreamError: 404, UnavailableError: 503,
        UnknownOutcomeError: 504, PermissionDeniedError: 500,
    }  # fmt: skip
    assert {kind: names["status_of"](kind("why")) for kind in statuses} == statuses


def test_an_outbox_is_stored_once_in_order_with_its_transaction(
    names: dict[str, Any], client: Client
) -> None:
    start = client.offset_at("shop", "latest")
    for total in (7, 8):
        names["order"](total)
    with pytest.raises(OverflowError):  # The transaction fails, and leaves no record.
        names["order"](1 << 70)
    kept = names["database"].execute("SELECT * FROM outbox").fetchall()
    assert names["relay"](client) == 2
    with names["database"] as database:  # As if the relay had ended before it could delete.
        database.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?)", kept)
    assert names["relay"](client) == 2
    assert [each.json()["total"] for each in client.fetch("shop", start)] == [7, 8]


def test_worker_processes_have_a_client_each(server: ServerProcess, client: Client) -> None:
    start = client.offset_at("shop", "latest")
    program = (blocks(" workers")[0] + FORKS).replace("localhost:9292", server.grpc)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(list(range(start, start + 6))), done


def test_values_are_objects_of_each_library(names: dict[str, Any], client: Client) -> None:
    before = sum(each.json()["total"] for each in client.fetch("shop"))
    assert names["total_of"](client) == before + 5

    class Bought(BaseModel):
        total: int

    with client.publisher("shop.orders", value_serializer=lambda o: o.model_dump_json()) as sends:
        sends.send(Bought(total=6))
    last = client.consume("shop", "earliest", value_deserializer=Bought.model_validate_json)
    last.seek(client.offset_at("shop", "latest") - 1)
    with last:
        assert next(last).value == Bought(total=6)
    assert Value.FromString(Value.SerializeToString(Value(number_value=6))).number_value == 6


def test_the_program_for_fastapi_is_python() -> None:
    compile(blocks(" fastapi")[0], PAGE.name, "exec")
