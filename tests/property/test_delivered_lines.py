"""The compiled form of delivered messages is the pure one, byte for byte, and a run of deliveries
leaves a consumer as single ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.config import AckPolicy, ConsumerConfig
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.pulls import Pull, Pulls
from jetstream_server.consumers.records import Record, payload_lengths, sizes
from jetstream_server.jetstream_api.delivered_lines import lines, pure_lines

NOW = MonotonicUs(1_000)
numbers = st.one_of(st.integers(0, 1000), st.integers(0, 2**62))
records = st.builds(
    Record,
    numbers,
    numbers.map(WallUs),
    st.sampled_from([b"a", b"orders.eu", "größe.@x".encode(), bytes(range(33)) + b"~\x7f"]),
    st.binary(max_size=200),
    st.one_of(st.just(b""), st.binary(min_size=1, max_size=50)),
)
deliveries = st.lists(st.builds(Delivery, records, numbers, numbers, numbers), max_size=6)
texts = st.binary(max_size=20)


@given(deliveries, texts, texts, texts)
def test_the_compiled_lines_are_the_pure_ones(
    given_: list[Delivery], head: bytes, behind: bytes, queue: bytes
) -> None:
    assert lines(given_, head, behind, queue) == pure_lines(given_, head, behind, queue)


@pytest.mark.skipif(lines is pure_lines, reason="nothing is compiled")
@pytest.mark.parametrize(
    "wrong",
    [
        ("no record", 1, 1, 1),
        (Record(0, WallUs(0), b"a", b"", b""), 1, 1),
        (Record(0, WallUs(0), b"a", None, b""), 1, 1, 1),  # type: ignore[arg-type]
        (Record(0, WallUs(0), b"a", b"", b""), -1, 1, 1),
        (Record(0, WallUs(0), b"a", b"", b""), 2**63, 1, 1),
        (Record(0, WallUs(0), b"a", b"", b""), 1, "x", 1),
    ],
)
def test_what_is_no_delivery_is_an_error(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, IndexError, SystemError)):
        lines([wrong], b"", b"", b"")  # type: ignore[list-item]


def test_lines_are_what_nats_expects_on_a_leaf_link() -> None:
    plain = Delivery(Record(9, WallUs(5), b"a.b", b"xyz", b""), 1, 2, 3)
    headed = Delivery(Record(10, WallUs(6), b"a.c", b"v", b"NATS/1.0\r\n\r\n"), 2, 4, 0)
    expected = (
        b"LMSG in $JS.ACK.s.c.1.10.2.5000.3@a.b 3\r\nxyz\r\n"
        b"HMSG in $JS.ACK.s.c.2.11.4.6000.0@a.c 12 13\r\nNATS/1.0\r\n\r\nv\r\n"
    )
    for encode in (lines, pure_lines):
        assert encode([plain, headed], b"in $JS.ACK.s.c.", b"", b"") == expected


@given(st.lists(records, max_size=6))
def test_lengths_are_those_of_each_record(given_: list[Record]) -> None:
    payloads = payload_lengths(given_)
    assert payloads == [len(each.value) + len(each.headers) for each in given_]
    assert sizes(given_, payloads) == [each.size for each in given_]


@given(
    st.sampled_from(list(AckPolicy)),
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.lists(st.integers(0, 120), max_size=20),
)
def test_a_run_leaves_deliveries_as_single_ones_do(
    policy: AckPolicy, steps: list[int], acknowledged: list[int]
) -> None:
    config = ConsumerConfig(name="c", ack_policy=policy, ack_wait_us=50)
    one, other = Deliveries(config, 3), Deliveries(config, 3)
    offsets = [3 + sum(steps[: at + 1]) for at in range(len(steps))]
    for offset in offsets:
        one.deliver(offset, NOW)
    other.deliver_new(offsets, NOW)
    assert seen(one) == seen(other)
    done = [one.acknowledge(each) for each in acknowledged]
    assert other.acknowledge_some(acknowledged) == any(done)
    assert seen(one) == seen(other)
    due = MonotonicUs(NOW + 50)
    while (offset_due := one.next_due(due)) is not None:
        assert other.next_due(due) == offset_due
        one.acknowledge(offset_due)
        other.acknowledge(offset_due)
    assert other.next_due(due) is None


def seen(deliveries: Deliveries) -> list[object]:
    opened = {
        at: (each.sequence, each.count, each.due_us, each.since_us)
        for at, each in deliveries.open.items()
    }
    it = deliveries
    return [
        opened, it.position, it.sequence, it.last_offset, it.floor, it.changes, it.redelivered,
        it.next_due_us(), it.room,
    ]  # fmt: skip


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40))
def test_a_run_to_one_inbox_ends_the_pulls_that_have_everything(
    lefts: list[int], count: int
) -> None:
    pulls, config = Pulls(), ConsumerConfig(name="c")
    for left in lefts:
        assert pulls.add(Pull(b"in", left), config, NOW) is None
    reply, most = pulls.only_inbox
    assert (reply, most) == (b"in", sum(lefts))
    pulls.only_inbox_served(min(count, most), NOW)
    assert sum(pull.left for pull in pulls) == most - min(count, most)
    assert all(pull.left for pull in pulls)
    pulls.add(Pull(b"other", 1), config, NOW)
    assert pulls.only_inbox[0] == (b"other" if count >= most else b"")
