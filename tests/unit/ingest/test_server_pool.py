from __future__ import annotations

from random import Random

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_server.ingest.nats.server_pool import (
    DISCOVERED_MAX,
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    ServerAddress,
    ServerPool,
    parse_url,
)


def pool(*urls: str, seed: int = 0) -> ServerPool:
    return ServerPool(urls, Random(seed))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("h", ServerAddress("h", 4222, tls_name="h")),
        ("h:1", ServerAddress("h", 1, tls_name="h")),
        ("nats://h:1/", ServerAddress("h", 1, tls_name="h")),
        ("tls://h", ServerAddress("h", 4222, tls=True, tls_name="h")),
        ("nats://u:p%40@h", ServerAddress("h", 4222, user="u", password="p@", tls_name="h")),
        ("nats://u:@h", ServerAddress("h", 4222, user="u", tls_name="h")),
        ("nats://t%2Fk@h", ServerAddress("h", 4222, token="t/k", tls_name="h")),
        ("nats://[::1]:5", ServerAddress("::1", 5, tls_name="::1")),
    ],
)
def test_addresses_are_read_with_their_credentials(url: str, address: ServerAddress) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url", ["http://u:secret@h", "nats://u:secret@", "nats://u:secret@h:99999", "nats://secret@h/x"]
)
def test_an_address_that_is_none_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        pool()


def test_credentials_are_in_no_url_and_no_repr() -> None:
    servers = pool("nats://u:secret@h:1", "nats://secret@[::1]:2")
    assert servers.urls == ("nats://h:1", "nats://[::1]:2")
    assert "secret" not in repr(servers.next_round())


def test_a_round_has_every_server_once_in_varying_order_the_avoided_one_last() -> None:
    servers = pool(*(f"h{number}" for number in range(5)))
    avoided = parse_url("h3")
    orders = set()
    for _ in range(50):
        order = [address.host for address in servers.next_round(avoided)]
        assert sorted(order) == ["h0", "h1", "h2", "h3", "h4"]
        assert order[-1] == "h3"
        orders.add(tuple(order))
    assert len(orders) > 5


def test_discovered_servers_replace_those_discovered_before_and_inherit_security() -> None:
    servers = pool("tls://u:p@h:1")
    teller = servers.next_round()[0]
    servers.learn(["10.0.0.1:2", "h:1", "10.0.0.1:2", 7, "http://no", ""], teller)
    assert servers.urls == ("tls://h:1", "tls://10.0.0.1:2")
    learnt = next(each for each in servers.next_round() if each.host == "10.0.0.1")
    assert learnt == ServerAddress("10.0.0.1", 2, True, "u", "p", "", "h")
    servers.learn(["[fe80::1]:3"], teller)
    assert servers.urls == ("tls://h:1", "tls://[fe80::1]:3")


def test_what_a_server_can_make_us_remember_is_bounded() -> None:
    servers = pool("h")
    servers.learn([f"h{number}:1" for number in range(10_000)], parse_url("h"))
    assert len(servers.urls) == DISCOVERED_MAX + 1


def test_pauses_grow_to_a_limit_and_never_agree() -> None:
    servers = pool("h")
    for rounds, longest in [(0, PAUSE_S_FIRST), (2, 4 * PAUSE_S_FIRST), (10**6, PAUSE_S_MAX)]:
        pauses = [servers.pause_s(rounds) for _ in range(100)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
        assert len(set(pauses)) > 50
