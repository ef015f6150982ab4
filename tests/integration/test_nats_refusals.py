"""Subscriptions that NATS refuses: who is told, who is not concerned, and when they are heard."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.ingest.nats import connection as connections
from jetstream_server.ingest.nats.connection import NatsConnection
from tests.support import command
from tests.support.loops import eventually, on_loop
from tests.support.nats_client import Collector, connected, pub
from tests.support.nats_server import NatsServer
from tests.support.server import running_server

USERS = """authorization {{ users: [
    {{user: js, password: js, permissions: {{subscribe: {{allow: {allow}}}, publish: ">"}}}},
    {{user: app, password: app}} ] }}"""


def url_for(server: NatsServer, user: str) -> str:
    return server.url.replace("://", f"://{user}:{user}@")


class Owner(Collector):
    """Remembers what is said of its subscriptions, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, str]] = []

    def hear(self, sid: int, error: PermissionDeniedError | None) -> None:
        self.told.append((sid, "accepted" if error is None else error.message))


async def until_heard(connection: NatsConnection, subjects: list[str], owner: Owner) -> None:
    """Publish until each of the subjects has arrived."""
    async with asyncio.timeout(60):
        while missing := set(subjects) - {each.decode() for each in owner.subjects}:
            connection.write(b"".join(pub(subject) for subject in missing))
            await asyncio.sleep(0.1)


@on_loop
async def test_a_stream_is_heard_soon_after_the_right_was_granted() -> None:
    owner = Owner()
    with NatsServer(USERS.format(allow='["other.>"]')) as server:
        async with (
            connected(url_for(server, "js")) as connection,
            connected(url_for(server, "app")) as publisher,
        ):
            sid = connection.subscribe("orders.a", "", owner.deliver, owner.hear)
            await connection.flush()
            assert connection.subscriptions_refused == 1
            await asyncio.sleep(1.5)  # It was asked again meanwhile, and refused again.
            assert [each for each, _ in owner.told] == [sid], "a repeated refusal is no news"
            await asyncio.to_thread(server.reconfigure, USERS.format(allow='">"'))
            await until_heard(publisher, ["orders.a"], owner)
            assert owner.told[-1] == (sid, "accepted")
            assert connection.subscriptions_refused == 0
            assert connection.counters.disconnects == 0


@on_loop
async def test_a_right_that_is_taken_away_and_given_back() -> None:
    owner = Owner()
    with NatsServer(USERS.format(allow='">"')) as server:
        async with (
            connected(url_for(server, "js")) as connection,
            connected(url_for(server, "app")) as publisher,
        ):
            connection.subscribe("orders.a", "", owner.deliver, owner.hear)
            await connection.flush()
            await asyncio.to_thread(server.reconfigure, USERS.format(allow='["other.>"]'))
            await eventually(lambda: connection.subscriptions_refused == 1)
            await asyncio.to_thread(server.reconfigure, USERS.format(allow='">"'))
            await eventually(lambda: connection.subscriptions_refused == 0)
            owner.deliveries.clear()
            await until_heard(publisher, ["orders.a"], owner)


@pytest.mark.parametrize("when", ["before", "after", "one by one"])
@on_loop
async def test_at_a_limit_those_beyond_it_are_refused_and_no_others(when: str) -> None:
    owner = Owner()
    with NatsServer("max_subscriptions: 100") as server:
        connection = NatsConnection([server.url])
        if when != "before":
            await connection.connect(60.0)
        sids = []
        for number in range(150):
            sids.append(connection.subscribe(f"s.{number}", "", owner.deliver, owner.hear))
            if when == "one by one":
                await connection.flush()
        await connection.connect(60.0)
        await connection.flush()
        try:
            assert [sid for sid, _ in owner.told] == sids[100:]
            connection.write(b"".join(pub(f"s.{number}") for number in range(150)))
            await connection.flush()
            assert len(owner.subjects) == 100
            for sid in sids[:50]:
                connection.unsubscribe(sid)
            await until_heard(connection, [f"s.{number}" for number in range(100, 150)], owner)
            assert connection.subscriptions_refused == 0
        finally:
            await connection.close()


@on_loop
async def test_a_subscription_refused_while_others_end_is_the_one_that_is_told() -> None:
    """At the limit NATS does not say which one it means."""
    owner = Owner()
    with NatsServer("max_subscriptions: 2") as server:
        async with connected(server.url) as connection:
            first = connection.subscribe("a", "", owner.deliver, owner.hear)
            connection.subscribe("b", "", owner.deliver, owner.hear)
            beyond = connection.subscribe("c", "", owner.deliver, owner.hear)
            connection.unsubscribe(first)
            connection.subscribe("d", "", owner.deliver, owner.hear)
            await connection.flush()
            assert [sid for sid, _ in owner.told] == [beyond]


@on_loop
async def test_a_subject_too_long_for_nats_costs_the_others_one_moment() -> None:
    owner = Owner()
    long = ".".join(["x" * 60] * 20)
    with NatsServer("max_control_line: 512") as server:
        async with connected(server.url) as connection:
            connection.subscribe("a", "", owner.deliver, owner.hear)
            await connection.flush()
            sid = connection.subscribe(long, "", owner.deliver, owner.hear)
            connection.subscribe("b", "", owner.deliver, owner.hear)
            await eventually(lambda: bool(owner.told))
            assert [each for each, _ in owner.told] == [sid]
            assert "control line" in owner.told[0][1]
            await until_heard(connection, ["a", "b"], owner)
            await asyncio.sleep(3)
            assert connection.counters.disconnects <= 2
            again = connection.subscribe(long, "", owner.deliver, owner.hear)
            await connection.flush()
            assert owner.told[-1][0] == again
            assert connection.counters.disconnects <= 2, "what is known is not tried"
            server.kill()
            server.reconfigure("max_control_line: 4096")
            server.start()
            await eventually(lambda: connection.subscriptions_refused == 0)
            await connection.flush()
            await until_heard(connection, ["a", "b", long], owner)


@on_loop
async def test_what_one_server_refused_is_forgotten_with_it() -> None:
    owner = Owner()
    with NatsServer("max_subscriptions: 1") as server:
        async with connected(server.url) as connection:
            connection.subscribe("a", "", owner.deliver, owner.hear)
            sid = connection.subscribe("b", "", owner.deliver, owner.hear)
            await connection.flush()
            assert connection.subscriptions_refused == 1
            server.kill()
            await eventually(lambda: owner.told[-1] == (sid, "accepted"))
            assert connection.subscriptions_refused == 0


@on_loop
async def test_who_is_refused_for_long_asks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS writes a line about each refusal."""
    monkeypatch.setattr(connections, "RETRY_S_FIRST", 0.05)
    owner = Owner()
    asked = 0
    with NatsServer("max_subscriptions: 1") as server:
        async with connected(server.url) as connection:
            ask = connection._ask

            def counted(*arguments: object) -> object:
                nonlocal asked
                asked += 1
                return ask(*arguments)  # type: ignore[arg-type]

            monkeypatch.setattr(connection, "_ask", counted)
            for subject in "ab":
                connection.subscribe(subject, "", owner.deliver, owner.hear)
            begun = asyncio.get_running_loop().time()
            await eventually(lambda: asked == 8)
            assert asyncio.get_running_loop().time() - begun > 1.0, "pauses do not grow"


def test_a_refused_stream_is_shown_and_heard_once_it_is_created_again(tmp_path: Path) -> None:
    with NatsServer(USERS.format(allow='["_INBOX.>", "fine.>"]')) as nats:
        url = url_for(nats, "js")
        with running_server(tmp_path / "data", "--nats", url) as server:

            def read(path: str) -> str:
                with urllib.request.urlopen(server.http + path, timeout=60) as answer:
                    return str(answer.read().decode())

            with Client(server.grpc, nats=url_for(nats, "app")) as client:
                client.create_stream("fine", "fine.>")
                with pytest.raises(PermissionDeniedError, match="NATS"):
                    client.create_stream("orders", "orders.>")
                assert client.describe_stream("orders").state.startswith("not listening: NATS")
                assert client.describe_stream("fine").state == "online"
                assert "jetstream_nats_subscriptions_refused 1.0" in read("/metrics")
                assert "NATS refuses subscriptions: 1" in read("/readyz")
                health = ("cluster", "health", "--json", "--server", server.grpc)
                ended = command.jetstream(*health)
                assert ended.returncode == 7
                (problem,) = json.loads(ended.stdout)["problems"]
                assert (problem["kind"], problem["about"]) == ("not_listening", "orders@orders.>")
                time.sleep(4)  # The next retry is some seconds off.
                nats.reconfigure(USERS.format(allow='">"'))
                begun = time.monotonic()
                while True:
                    try:
                        client.create_stream("orders", "orders.>")
                        break
                    except PermissionDeniedError:  # NATS reads its file again.
                        assert time.monotonic() < begun + 60
                assert client.publish("orders.a", b"1").offset == 0
                assert client.describe_stream("orders").state == "online"
