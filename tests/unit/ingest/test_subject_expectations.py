"""Messages that are to be stored only behind a certain record of their subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_server.log.subject_index import SubjectIndex
from jetstream_server.replication import subjects
from tests.support.loops import on_loop
from tests.unit.ingest.arriving import batch, with_headers
from tests.unit.ingest.streams import INBOX, Stream, stream_on
from tests.unit.ingest.test_produced import Producer

WRONG_SEQUENCE, UNAVAILABLE, QUOTA = 10071, 10008, 10002
KEYED = {"key": "subject"}


def expecting(sequence: int, *others: bytes) -> bytes:
    return with_headers(b"Nats-Expected-Last-Subject-Sequence: %d" % sequence, *others)


def refused(stream: Stream) -> list[tuple[int, str]]:
    """Number and text of each refusal."""
    answers = [answer for _, answer in stream.answers()]
    return [
        (each["error"]["err_code"], each["error"]["description"])
        for each in answers
        if "error" in each
    ]


@pytest.mark.parametrize("config", [{}, KEYED, {**KEYED, "compact": True}])
def test_it_is_held_against_the_last_record_of_the_subject(
    tmp_path: Path, config: dict[str, object]
) -> None:
    @on_loop
    async def scenario() -> None:
        stream = stream_on(tmp_path, **config)
        for subject in (b"orders.a", b"orders.b", b"orders.a"):
            stream.deliver((b"v", INBOX), subject=subject)
        stream.node.flushes.run()
        stream.answers()
        for subject, sequence in ((b"orders.a", 3), (b"orders.b", 2), (b"orders.c", 0)):
            stream.deliver((b"wrong", INBOX), subject=subject, headers=[expecting(sequence + 1)])
            assert refused(stream) == [(WRONG_SEQUENCE, f"wrong last sequence: {sequence}")]
            stream.deliver((b"right", INBOX), subject=subject, headers=[expecting(sequence)])
            assert refused(stream) == []
        assert stream.values() == [b"v"] * 3 + [b"right"] * 3

    scenario()


@on_loop
async def test_what_is_appended_and_not_committed_counts(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    for value in (b"first", b"second"):
        stream.deliver((value, INBOX), subject=b"orders.a", headers=[expecting(0)])
    assert refused(stream) == [(WRONG_SEQUENCE, "wrong last sequence: 1")]
    assert stream.values() == [b"first"]
    assert stream.replica.high_watermark == 0


@on_loop
async def test_so_do_messages_before_it_in_the_same_read(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    headers = [expecting(0), expecting(0), expecting(1), expecting(1)]
    stream.deliver(*[(b"%d" % i, INBOX) for i in range(4)], subject=b"orders.a", headers=headers)
    assert [text for _, text in refused(stream)] == [
        "wrong last sequence: 1",
        "wrong last sequence: 2",
    ]
    assert stream.values() == [b"0", b"2"]


@on_loop
async def test_a_repetition_is_a_duplicate_before_its_condition_is_untrue(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    block = expecting(0, b"Nats-Msg-Id: a")
    stream.deliver((b"1", INBOX), (b"1", INBOX), headers=[block, block], subject=b"orders.x")
    stream.node.flushes.run()
    assert [(a["seq"], a.get("duplicate")) for _, a in stream.answers()] == [(1, None), (1, True)]


@on_loop
async def test_a_single_message_straight_to_the_leader_is_held_against_it(tmp_path: Path) -> None:
    stream, producer = stream_on(tmp_path), Producer()
    for sequence in (0, 0, 1):
        producer.sends(stream, batch(b"v", header_blocks=[expecting(sequence)]))
    stream.node.flushes.run()
    assert sorted(producer.told, key=str) == [(0, 1, False), (1, 1, False), PreconditionFailedError]


@on_loop
async def test_other_forms_of_the_header_are_refused(tmp_path: Path) -> None:
    stream = stream_on(tmp_path)
    blocks = [
        with_headers(b"Nats-Expected-Last-Subject-Sequence: x"),
        with_headers(b"Nats-Expected-Last-Subject-Sequence: -1"),
        with_headers(b"Nats-Expected-Last-Subject-Sequence-Subject: orders.*"),
    ]
    stream.deliver(*[(b"v", INBOX)] * 3, headers=blocks)
    assert [number for number, _ in refused(stream)] == [10003, 10003, 20001]
    assert stream.values() == []


@on_loop
async def test_a_long_log_that_was_not_read_yet_holds_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the index knows all, nothing may be decided by it."""
    monkeypatch.setattr(subjects, "STEP_BYTES", 1)
    monkeypatch.setattr(subjects.catch_up, "__defaults__", (1,))
    stream = stream_on(tmp_path)
    wanted: list[object] = []
    stream.node.replicas.index_wanted = wanted.append
    for value in range(3):
        stream.deliver((b"%d" % value, INBOX), subject=b"orders.a")
    stream.node.flushes.run()
    stream.answers()
    for _ in range(2):
        stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(0)])
        assert [number for number, _ in refused(stream)] == [UNAVAILABLE]
    assert wanted == [stream.replica]
    stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(0)])
    assert refused(stream) == [(WRONG_SEQUENCE, "wrong last sequence: 3")]


@on_loop
async def test_too_many_subjects_are_refused_and_what_expects_nothing_is_stored(
    tmp_path: Path,
) -> None:
    stream = stream_on(tmp_path, **KEYED)
    stream.replica.log.subjects = SubjectIndex(0, bytes_max=500)
    stream.deliver(*[(b"v", INBOX)] * 4)
    stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(0)])
    assert [number for number, _ in refused(stream)] == [QUOTA]
    assert stream.values() == [b"v"] * 4


@on_loop
async def test_a_new_leader_holds_it_against_what_the_old_one_has_stored(tmp_path: Path) -> None:
    """Also against what is not committed yet: it will be, or the leadership ends."""
    stream = stream_on(tmp_path)
    stream.deliver((b"v", INBOX), subject=b"orders.a")
    stream.node.restart(clean=False)
    stream.replica = stream.node.replica(stream.replica.stream)
    stream.lead_anew()
    stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(0)])
    assert refused(stream) == [(WRONG_SEQUENCE, "wrong last sequence: 1")]
    stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(1)])
    assert refused(stream) == []


@pytest.mark.parametrize(
    ("name", "mutant", "caught_by"),
    [
        ("newest", SubjectIndex.last, "test_what_is_appended_and_not_committed_counts"),
        ("newest", SubjectIndex.last, "test_so_do_messages_before_it_in_the_same_read"),
        ("note", lambda self, batch: setattr(self, "reached", batch.header.next_offset),
         "test_what_is_appended_and_not_committed_counts"),
    ],
)  # fmt: skip
def test_a_leader_that_breaks_the_rule_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, caught_by: str
) -> None:
    monkeypatch.setattr(SubjectIndex, name, mutant)
    with pytest.raises(AssertionError):
        globals()[caught_by](tmp_path)


@on_loop
async def test_an_index_that_is_made_at_once_is_kept_up_to_date_too(tmp_path: Path) -> None:
    """Otherwise everything appended later would count as not committed, until it is full."""
    stream = stream_on(tmp_path)
    wanted: list[object] = []
    stream.node.replicas.index_wanted = wanted.append
    stream.deliver((b"v", INBOX), subject=b"orders.a", headers=[expecting(0)])
    assert refused(stream) == []
    assert wanted == [stream.replica]


@on_loop
async def test_many_messages_read_no_more_of_the_log_than_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step blocks the event loop: the background reads the rest."""
    monkeypatch.setattr(subjects.catch_up, "__defaults__", (1,))
    stream = stream_on(tmp_path)
    count = 10 * subjects.STEPS_AT_ONCE
    for value in range(count):
        stream.deliver((b"%d" % value, INBOX), subject=b"orders.a")
    stream.node.flushes.run()
    stream.answers()
    stream.deliver(*[(b"v", INBOX)] * count, subject=b"orders.a", headers=[expecting(0)] * count)
    assert [number for number, _ in refused(stream)] == [UNAVAILABLE] * count
    index = stream.replica.log.subjects
    assert index is not None
    assert index.reached == subjects.STEPS_AT_ONCE
