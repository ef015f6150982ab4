"""Requests of the JetStream API: whatever clients send is a request or a refusal."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_server.jetstream_api.answers import direct_headers, time_text
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.jetstream_api.requests import (
    VERBS,
    GetRequest,
    api_name,
    body_of,
    own_name,
    request_of,
)

fields = st.sampled_from(
    ["seq", "last_by_subj", "next_by_subj", "start_time", "batch", "max_bytes", "multi_last",
     "up_to_seq", "up_to_time", "no_hdr", "x"]
)  # fmt: skip
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
        st.sampled_from(["orders.>", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"]),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def parsed(payload: bytes) -> GetRequest | ApiError:
    try:
        return GetRequest.of(payload)
    except ApiError as error:
        return error


@given(st.one_of(st.binary(max_size=100), st.dictionaries(fields, values).map(json.dumps)))
@example(b'{"start_time":"9999-12-31T23:59:59-23:59"}')
@example(b'{"seq":' + b"9" * 5_000 + b"}")
@example(b'{"multi_last":["\\ud800"]}')
def test_a_body_is_a_request_or_a_refusal(body: bytes | str) -> None:
    found = parsed(body if isinstance(body, bytes) else body.encode())
    if isinstance(found, ApiError):
        assert found.err_code in (10003, 10025)
        assert "\n" not in found.status
        return
    assert found.sequence >= 0
    starts = (found.sequence, found.last_subject, found.start_time is not None)
    ways = (found.last_subject, found.next_subject, found.subjects)
    assert sum(map(bool, starts)) <= 1
    assert sum(map(bool, ways)) <= 1


@given(st.binary(max_size=60))
def test_any_subject_has_a_verb_or_none(tail: bytes) -> None:
    found = request_of(b"$JS.log.API." + tail, "log")
    assert found.verb in (*VERBS, "")
    assert found.type.startswith("io.nats.jetstream.api.v1.")


@given(st.sampled_from(VERBS), st.sampled_from(["", "orders", "a%2Eb"]))
def test_each_verb_is_found_with_its_stream(verb: str, stream: str) -> None:
    subject = f"$JS.log.API.{verb}" + (f".{stream}" if stream else "")
    assert request_of(subject.encode(), "log") == (verb, stream, "")
    assert request_of(f"{subject}.a.b".encode(), "log").rest in ("a.b", "b")
    assert request_of(subject.encode(), "other").verb == ""


@given(st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}\Z"))
def test_a_name_comes_back_as_it_was_and_is_one_token_for_nats(name: str) -> None:
    assert own_name(api_name(name)) == name
    assert not set(api_name(name)) & set(" .*>/\\\t")


@given(st.lists(st.sampled_from([b"A: 1", b"nats-SEQUENCE: 7", b"Nats-Subject : x", b":", b"y"])))
def test_headers_of_a_publisher_never_stand_for_ours(lines: list[bytes]) -> None:
    block = b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
    found = direct_headers(block, {"Nats-Sequence": 3}).split(b"\r\n")
    named = [line for line in found if line.lower().startswith(b"nats-s")]
    assert named == [b"Nats-Sequence: 3"]
    assert found.count(b"A: 1") == lines.count(b"A: 1")


@given(st.one_of(st.none(), st.integers(-(10**20), 10**20)))
@example(-30_610_224_000_000_001)  # The year 999.
def test_any_time_is_written_as_a_time_in_utc(us: int | None) -> None:
    assert len(time_text(us)) in (20, 27)
    assert time_text(us).endswith("Z")


@given(st.sampled_from([b"", b" ", b"null", b"{}"]))
def test_no_body_is_an_empty_one(payload: bytes) -> None:
    assert body_of(payload) == {}
