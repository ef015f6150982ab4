"""Pages of other servers: a browser shows answers only to those that the configuration names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from jetstream_protocol.errors import StreamNotFoundError
from jetstream_server.serving.http.cors import Cors
from jetstream_server.serving.http.hosts import OwnHosts
from jetstream_server.serving.http.server import HttpServer, Route
from tests.support.access import for_the_known, open_to_all
from tests.support.loops import on_loop
from tests.support.server import free_port_base

PAGE = "https://app.example"
ONE = "/v1/streams/{stream}/cursors/{cursor}"
GRANT = "Access-Control-Allow-Origin"


async def ok(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def none(request: web.Request) -> web.Response:
    raise StreamNotFoundError("none")


async def streamed(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"1")
    return response


@asynccontextmanager
async def asking(*origins: str, secured: bool = False) -> AsyncIterator[aiohttp.ClientSession]:
    routes = [Route("/metrics", ok), Route("/api/v1/cluster", ok), Route("/v1/cursors", ok)]
    routes += [Route(ONE, ok), Route(ONE, ok, "PUT"), Route(ONE, ok, "DELETE")]
    routes += [Route("/api/v1/streams", ok, "POST"), Route("/v1/cluster", none)]
    routes += [Route("/v1/streams", streamed)]
    port = free_port_base(1)
    access = for_the_known() if secured else open_to_all()
    server = HttpServer(routes, access, hosts=OwnHosts([]), cors=Cors(origins))
    await server.start("127.0.0.1", port)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await server.stop()


@on_loop
async def test_only_a_page_that_is_named_is_shown_answers() -> None:
    async with asking(PAGE, "http://localhost:3000") as session:
        for path, status in (("cursors", 200), ("cluster", 404), ("streams", 200), ("none", 404)):
            async with session.get(f"/v1/{path}", headers={"Origin": PAGE}) as answer:
                assert (answer.status, answer.headers[GRANT]) == (status, PAGE)
                assert answer.headers["Vary"] == "Origin"
                assert "Access-Control-Allow-Credentials" not in answer.headers
        for origin in ("https://evil.example", "http://app.example", f"{PAGE}:8443", "null", "*"):
            async with session.get("/v1/cursors", headers={"Origin": origin}) as answer:
                assert GRANT not in answer.headers, origin
                assert answer.headers["Vary"] == "Origin", "no cache may show it to another page"
        async with session.get("/v1/cursors") as answer:
            assert GRANT not in answer.headers


@on_loop
async def test_nothing_but_v1_is_for_pages_of_other_servers() -> None:
    async with asking(PAGE) as session:
        for path in ("/metrics", "/api/v1/cluster", "/v1", "/v1cursors"):
            async with session.get(path, headers={"Origin": PAGE}) as answer:
                assert GRANT not in answer.headers, path
            async with session.options(path, headers={"Origin": PAGE}) as answer:
                assert answer.status in (404, 405), path
        async with session.post("/api/v1/streams", headers={"Origin": PAGE}) as answer:
            assert answer.status == 403


@on_loop
@pytest.mark.parametrize("secured", [False, True], ids=["open", "secured"])
async def test_a_browser_may_ask_beforehand_without_a_token(secured: bool) -> None:
    async with asking(PAGE, secured=secured) as session:
        cursor = "/v1/streams/orders/cursors/billing"
        async with session.options(cursor, headers={"Origin": PAGE}) as answer:
            assert (answer.status, await answer.read()) == (204, b"")
            assert answer.headers[GRANT] == PAGE
            assert answer.headers["Access-Control-Allow-Methods"] == "DELETE, GET, PUT"
            assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        async with session.options(cursor, headers={"Origin": "https://evil.example"}) as answer:
            assert answer.status == 403
            assert GRANT not in answer.headers
            assert "Access-Control-Allow-Methods" not in answer.headers
        rebound = {"Origin": PAGE, "Host": "evil.example"}
        async with session.options(cursor, headers=rebound) as answer:
            assert answer.status == 403


@on_loop
async def test_only_a_page_that_is_named_may_change_something() -> None:
    cursor = "/v1/streams/orders/cursors/billing"
    async with asking(PAGE) as session:
        async with session.put(cursor, headers={"Origin": PAGE}) as answer:
            assert answer.status == 200
        async with session.delete(cursor, headers={"Origin": "https://evil.example"}) as answer:
            assert answer.status == 403


@on_loop
async def test_by_default_no_other_page_is_told_anything() -> None:
    async with asking() as session:
        async with session.get("/v1/cursors", headers={"Origin": PAGE}) as answer:
            assert answer.status == 200
            assert {GRANT, "Vary"}.isdisjoint(answer.headers)
        async with session.options("/v1/cursors", headers={"Origin": PAGE}) as answer:
            assert answer.status == 405
        async with session.put("/v1/streams/a/cursors/b", headers={"Origin": PAGE}) as answer:
            assert answer.status == 403
