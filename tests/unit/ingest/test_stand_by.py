"""Messages that arrive between two leaders: the second stores them, once, or none does."""

from __future__ import annotations

import tracemalloc
from typing import cast

import pytest

from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.parser import NatsParser
from jetstream_server.ingest.stream import stand_by
from jetstream_server.ingest.stream.stand_by import StandBy
from jetstream_server.ingest.stream.stream_ingest import StreamIngest


class Ingest:
    """Takes in what it is handed."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def deliver(self, delivery: Delivery) -> None:
        self.values += delivery.values


def delivery(*values: bytes) -> Delivery:
    return Delivery(1, [b"s"] * len(values), [b""] * len(values), list(values))


def stored(
    kept: StandBy, log_end_offset: int, *, leader_epoch: int = 5
) -> tuple[bool, list[bytes]]:
    ingest = Ingest()
    done = kept.store(cast(StreamIngest, ingest), leader_epoch, log_end_offset)
    kept.deliver(delivery(b"later"))
    return done, ingest.values


def keeping(*values: bytes) -> StandBy:
    kept = StandBy(4, 100)
    for value in values:
        kept.deliver(delivery(value))
    return kept


def test_what_was_kept_is_stored_in_order_and_before_what_comes_later() -> None:
    assert stored(keeping(b"a", b"b"), 100) == (True, [b"a", b"b", b"later"])


def test_a_log_that_lost_its_uncommitted_end_takes_it_too() -> None:
    assert stored(keeping(b"a"), 98) == (True, [b"a", b"later"])


def test_if_the_old_leader_went_on_nothing_is_stored_twice() -> None:
    assert stored(keeping(b"a"), 101) == (False, [])


@pytest.mark.parametrize("leader_epoch", [4, 6])
def test_if_another_led_meanwhile_nothing_is_stored_that_it_refused(leader_epoch: int) -> None:
    assert stored(keeping(b"a"), 100, leader_epoch=leader_epoch) == (False, [])


def test_it_does_not_keep_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_by, "BYTES_MAX", 2 * stand_by.MESSAGE_BYTES + 3)
    assert stored(keeping(b"12", b"3"), 100) == (True, [b"12", b"3", b"later"])
    assert stored(keeping(b"12", b"34"), 100) == (False, [])
    assert stored(keeping(b"1", b"", b""), 100) == (False, [])  # What they take, too, is counted.


def test_what_was_read_with_a_kept_message_is_not_held_on_to() -> None:
    kept = StandBy(4, 100)
    other = b"MSG other 2 100000\r\n" + bytes(100_000) + b"\r\n"
    tracemalloc.start()
    try:
        for _ in range(100):
            mine, _ = NatsParser().feed(b"MSG s 1 4\r\nkept\r\n" + other)
            kept.deliver(cast(Delivery, mine))
        del mine, _
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert stored(kept, 100) == (True, [b"kept"] * 100 + [b"later"])
