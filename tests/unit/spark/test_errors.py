"""The advice that ends an error."""

from __future__ import annotations

import time

import pytest

from jetstream_client import (
    JetstreamError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from pyspark_jetstream.clients import asked_now
from pyspark_jetstream.errors import explained, naming
from pyspark_jetstream.options import read_options
from tests.support.loops import on_loop
from tests.support.server import free_port_base


def explanation(error: JetstreamError) -> str:
    with pytest.raises(type(error)) as raised, explained("a:9292"):
        raise error
    return str(raised.value)


def test_servers_are_to_be_checked_only_if_none_answered() -> None:
    said = explanation(UnavailableError("node 2 does not know yet where its records end"))
    assert "records end; if no node answered, check that option servers (a:9292) names" in said


@pytest.mark.parametrize("cls", [NotEnoughReplicasError, TooManyRequestsError])
def test_what_only_a_node_answers_brings_no_advice_on_servers(cls: type[JetstreamError]) -> None:
    assert "servers" not in explanation(cls("refused"))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("stream '17' has no leader now", "stream 'orders@a.>' has no leader now"),
        ("node 2 does not lead stream 17; ask", "node 2 does not lead stream 'orders@a.>'; ask"),
        ("stream '18' and stream '17@x'", "stream '18' and stream '17@x'"),
    ],
)
def test_errors_name_streams_and_not_their_numbers(said: str, wanted: str) -> None:
    for error in (UnavailableError(said), StreamNotFoundError(said), OffsetOutOfRangeError(said)):
        with pytest.raises(type(error)) as raised, naming({17: "orders@a.>"}):
            raise error
        assert (str(raised.value), raised.value.message) == (wanted, wanted)


@on_loop
async def test_a_refused_connection_is_told_long_before_the_timeout() -> None:
    servers = f"127.0.0.1:{free_port_base()}"
    config = read_options({"servers": servers, "streams": "a", "timeout": "600"}, "batch")
    begun = time.monotonic()
    with pytest.raises(UnavailableError):
        await asked_now(config.config, lambda client: client.list_streams())
    assert time.monotonic() - begun < config.config.timeout / 2
