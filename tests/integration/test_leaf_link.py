"""The leaf link against real NATS servers: every login, permissions, lost servers, clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats
import pytest
from structlog.testing import capture_logs

from jetstream_server.ingest.nats.auth import Credentials
from jetstream_server.ingest.nats.handshake import LinkOptions
from tests.support.leaf import LeafServer, asked, client_of, echoing
from tests.support.loops import eventually, on_loop
from tests.support.nats_certificates import issued
from tests.support.nats_jwt import new_operator, new_user

LIMITED = """
accounts { APP { users [
  { user: log, password: leaf, permissions: {
      subscribe: { allow: ["$JS.log.API.>"] }, publish: { allow: ["_INBOX.>", "_R_.>"] } } }
  { user: app, password: app }
] } }
"""


def login(**fields: Any) -> LinkOptions:
    return LinkOptions(credentials=Credentials(**fields))


async def round_trip(server: LeafServer, options: LinkOptions, **client: Any) -> None:
    """Open a leaf link, and have a client's request answered over it."""
    async with echoing(server.leaf_url, options), client_of(server.url, **client) as app:
        assert await asked(app, "INFO", b"hello") == b"hello"


async def refusal(server: LeafServer, options: LinkOptions) -> str:
    """Why a leaf link is not opened."""
    with capture_logs() as logs:
        async with echoing(server.leaf_url, options, waits=False) as echo:
            await eventually(lambda: echo.link.last_failure != "")
            assert not echo.link.is_connected
            return f"{echo.link.last_failure} {logs}"


@on_loop
async def test_a_server_without_logins() -> None:
    with LeafServer() as server:
        await round_trip(server, LinkOptions())


@on_loop
async def test_user_and_password_by_options_or_url() -> None:
    with LeafServer(leaf="authorization { user: me, password: 'p@ss' }") as server:
        await round_trip(server, login(user="me", password="p@ss"))
        url = server.leaf_url.replace("://", "://me:p%40ss@")
        async with echoing(url):
            pass
        found = await refusal(server, login(user="me", password="wr0ng"))
        assert "Authorization Violation" in found
        assert "nats_login_refused" in found
        assert "wr0ng" not in found


@on_loop
async def test_a_token() -> None:
    with LeafServer("authorization { token: s3cr3t }") as server:
        await round_trip(server, login(token="s3cr3t"), token="s3cr3t")
        if server.version >= (2, 12):  # Earlier ones let leaf nodes in without it.
            assert "Authorization Violation" in await refusal(server, LinkOptions())


@on_loop
async def test_an_nkey(tmp_path: Path) -> None:
    seed, public_key = new_user()
    (tmp_path / "seed").write_text(seed)
    config = (
        f"accounts {{ APP {{ users [ {{ nkey: {public_key} }}, {{ user: a, password: a }} ] }} }}"
    )
    with LeafServer(config) as server:
        await round_trip(server, login(nkey_seed_file=tmp_path / "seed"), user="a", password="a")


@on_loop
async def test_a_creds_file(tmp_path: Path) -> None:
    operator = new_operator()
    creds = tmp_path / "leaf.creds"
    creds.write_text(operator.credentials())
    with LeafServer(operator.config) as server:
        await round_trip(server, login(credentials_file=creds), user_credentials=str(creds))


@pytest.mark.parametrize("first", [False, True])
def test_tls(tmp_path: Path, first: bool) -> None:
    made = issued(tmp_path)
    extra = ", handshake_first: true" if first else ""

    @on_loop
    async def scenario() -> None:
        with LeafServer(leaf=f"tls {{ {made.config}{extra} }}") as server:
            await round_trip(server, LinkOptions(tls=made.context(), tls_handshake_first=first))

    scenario()


@on_loop
async def test_credentials_are_not_sent_to_a_server_without_tls_where_tls_is_wanted(
    tmp_path: Path,
) -> None:
    made = issued(tmp_path)
    with LeafServer() as server:
        assert "does not offer TLS" in await refusal(server, LinkOptions(tls=made.context()))


@on_loop
async def test_a_domain_that_the_server_has_itself_is_refused_with_what_to_do() -> None:
    store = "jetstream { domain: log, store_dir: '%s' }"
    with LeafServer() as server:
        server.config += "\n" + store % server.folder
        server.stop()
        server.start()
        found = await refusal(server, LinkOptions())
        assert "choose another nats.api_domain" in found
        assert "nats_not_usable" in found
        server.config = server.config.replace("domain: log", "domain: hub")
        server.stop()
        server.start()
        await round_trip(server, LinkOptions())


@on_loop
async def test_answers_where_the_leaf_user_may_not_publish_are_dropped_and_cost_no_link() -> None:
    with LeafServer(LIMITED) as server:
        options = login(user="log", password="leaf")
        async with (
            echoing(server.leaf_url, options) as echo,
            client_of(server.url, user="app", password="app", inbox_prefix="_INBOX") as good,
            client_of(server.url, user="app", password="app", inbox_prefix="custom") as other,
        ):
            assert await asked(good, "INFO") == b"x"
            for reply in ("custom.inbox", "orders.eu", "$JS.log.API.INFO", "_INBOX.*", "a..b"):
                await other.publish("$JS.log.API.INFO", b"x", reply=reply)
            with pytest.raises(nats.errors.TimeoutError):
                await other.request("$JS.log.API.INFO", b"x", timeout=0.3)
            assert await asked(good, "INFO") == b"x"
            assert echo.link.counters.connects == 1
            assert echo.link.counters.answers_dropped >= 5


@on_loop
async def test_a_forbidden_answer_would_have_cost_the_link() -> None:
    """Else the test before shows nothing."""
    with LeafServer(LIMITED) as server:
        if server.version < (2, 12):
            pytest.skip("nats-server before 2.12 drops the answer, and keeps the link")
        options = login(user="log", password="leaf")
        async with echoing(server.leaf_url, options) as echo:
            link = echo.link._link
            assert link is not None
            link.write(b"LMSG custom.inbox 1\r\nx\r\n")
            await eventually(lambda: link.lost.done())


@on_loop
async def test_a_killed_server_is_found_again_and_told_everything_anew() -> None:
    with LeafServer() as server:
        async with echoing(server.leaf_url) as echo, client_of(server.url) as app:
            assert await asked(app, "STREAM.INFO.s") == b"x"
            server.kill()
            await eventually(lambda: not echo.link.is_connected)
            server.start()
            await eventually(lambda: echo.link.is_connected)
            async with client_of(server.url) as later:
                assert await asked(later, "STREAM.INFO.s", b"y") == b"y"
            assert echo.link.counters.connects == 2


@on_loop
async def test_with_two_servers_the_other_one_is_used_when_one_is_killed() -> None:
    with LeafServer() as one, LeafServer() as two:
        servers = {one.leaf_url: one, two.leaf_url: two}
        async with echoing(list(servers)) as echo:
            for _ in range(2):
                link = echo.link._link
                assert link is not None
                used = servers[link.address.url]
                async with client_of(used.url) as app:
                    assert await asked(app, "INFO") == b"x"
                used.kill()
                await eventually(lambda: not echo.link.is_connected)
                used.start()
                await eventually(lambda: echo.link.is_connected)


@on_loop
async def test_exactly_one_of_several_nodes_gets_a_request() -> None:
    with LeafServer() as server:
        options = [LinkOptions(name=f"node-{number}") for number in range(3)]
        async with (
            echoing(server.leaf_url, options[0]) as a,
            echoing(server.leaf_url, options[1]) as b,
            echoing(server.leaf_url, options[2]) as c,
            client_of(server.url) as app,
        ):
            await asked(app, "INFO")
            for echo in (a, b, c):
                echo.messages.clear()
            for number in range(60):
                assert await asked(app, "STREAM.NAMES", b"%d" % number) == b"%d" % number
            taken = [len(echo.messages) for echo in (a, b, c)]
            assert sum(taken) == 60
            assert echo.link.counters.answers_dropped == 0


@on_loop
async def test_a_request_that_no_node_announces_is_refused_by_nats_at_once() -> None:
    with LeafServer() as server:
        async with echoing(server.leaf_url) as echo, client_of(server.url) as app:
            await asked(app, "INFO")
            for verb in ("CONSUMER.MSG.NEXT.orders.worker", "FOO.BAR"):
                with pytest.raises(nats.errors.NoRespondersError):
                    await app.request(f"$JS.log.API.{verb}", b"", timeout=60)
            assert echo.subjects.count(b"$JS.log.API.INFO") == len(echo.messages)


@on_loop
async def test_nothing_but_requests_is_received() -> None:
    with LeafServer() as server:
        async with echoing(server.leaf_url) as echo, client_of(server.url) as app:
            sub = await app.subscribe("orders.>")
            for _ in range(100):
                await app.publish("orders.eu", b"x")
            await app.publish("_INBOX.a.b", b"x")
            assert await asked(app, "INFO") == b"x"
            assert set(echo.subjects) == {b"$JS.log.API.INFO"}
            await sub.unsubscribe()
