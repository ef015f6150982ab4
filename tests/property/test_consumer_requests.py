"""Whatever clients send about consumers is parsed, or refused with an error of the API."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_protocol.types import MonotonicUs
from jetstream_server.consumers.config import WAITING_DEFAULT
from jetstream_server.consumers.kept import config_from_json, config_to_json
from jetstream_server.jetstream_api.acknowledgements import Ack, AckKind, AckSubject
from jetstream_server.jetstream_api.consumer_answers import consumer_config
from jetstream_server.jetstream_api.consumer_requests import (
    CreateRequest,
    pull_of,
)
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.jetstream_api.requests import GetRequest

NOW = MonotonicUs(1_000)
FIELDS = (
    "name", "durable_name", "description", "deliver_policy", "opt_start_seq", "opt_start_time",
    "ack_policy", "ack_wait", "max_deliver", "backoff", "filter_subject", "filter_subjects",
    "max_ack_pending", "max_waiting", "headers_only", "max_batch", "max_expires", "max_bytes",
    "deliver_subject", "deliver_group", "idle_heartbeat", "flow_control", "inactive_threshold",
    "num_replicas", "mem_storage", "sample_freq", "pause_until", "metadata", "replay_policy",
    "batch", "expires", "no_wait", "group",
)  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(),
    st.sampled_from(["all", "none", "explicit", "last", "a.*", ">", "2026-01-01T00:00:00Z", "²"]),
    st.sampled_from(["2026-01-01T00:00:00.1234567Z", "1969-12-31T23:59:59.123456789Z"]),
    st.text(max_size=5), st.lists(st.sampled_from([5, "a", "a.>", None]), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)  # fmt: skip
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)


def created(config: object, rest: str = "c") -> CreateRequest:
    body = json.dumps({"stream_name": "s", "config": config}).encode()
    return CreateRequest.of("CONSUMER.CREATE", "s", rest, body, "new")


@given(objects, st.sampled_from(["", "c", "c.a.*", "²"]))
def test_a_configuration_is_kept_and_answered_as_it_was_understood(
    config: dict[str, object], rest: str
) -> None:
    try:
        found = created(config, rest).config
    except ApiError:
        return
    assert config_from_json(config_to_json(found)) == found
    again = created(consumer_config(found), found.name).config
    assert again == found


@pytest.mark.parametrize(
    "text", ["2026-01-31T10:00:00.123456789Z", "2026-01-31T10:00:00.000000001Z"]
)
def test_clients_get_the_times_back_that_they_have_asked_for(text: str) -> None:
    """nats.java compares them, and refuses a consumer whose start is another one."""
    asked = {"deliver_policy": "by_start_time", "opt_start_time": text, "pause_until": text}
    config = created(asked).config
    answer = consumer_config(config)
    assert (answer["opt_start_time"], answer["pause_until"]) == (text, text)
    assert config.start_time_us is not None
    assert config.begins_us == config.start_time_us + 1, "none from before that moment"
    assert GetRequest.of(json.dumps({"start_time": text, "seq": 0}).encode()).start_time == (
        config.begins_us
    )


@given(st.one_of(st.binary(max_size=30), objects.map(lambda each: json.dumps(each).encode())))
@example(b'{"batch":1e9}')
@example("²".encode())
def test_a_pull_is_parsed_or_refused(payload: bytes) -> None:
    try:
        pull = pull_of(payload, b"inbox", NOW)
    except ApiError:
        return
    assert 1 <= pull.left <= 10**9


@given(st.binary(max_size=40))
@example(b"-NAK {")
@example("-NAK ²s".encode())
def test_an_acknowledgement_is_parsed_or_ignored(payload: bytes) -> None:
    found = Ack.of(payload)
    assert found is None or found.delay_us >= 0


@given(st.lists(st.sampled_from(["$JS", "ACK", "log", "1", "²", "٣", "", "99999999999999999999"])))
def test_a_subject_of_an_acknowledgement_is_parsed_or_ignored(tokens: list[str]) -> None:
    for each in (tokens, [*["x"] * 7, *tokens][:12], [*["x"] * 7, *(tokens or ["1"])[:1], *"abcd"]):
        found = AckSubject.of(".".join(each).encode())
        assert found is None or found.sequence >= 0


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", Ack(AckKind.ACK)),
        (b"+ACK", Ack(AckKind.ACK)),
        (b"-NAK", Ack(AckKind.NAK)),
        (b'-NAK {"delay":3000000000}', Ack(AckKind.NAK, 3_000_000, b'{"delay":3000000000}')),
        (b"-NAK 1m2.5s", Ack(AckKind.NAK, 62_500_000, b"1m2.5s")),
        (b"+WPI", Ack(AckKind.PROGRESS)),
        (b"+TERM not ours", Ack(AckKind.TERM, 0, b"not ours")),
        (b"+NXT 5", Ack(AckKind.NEXT, 0, b"5")),
        (b'-NAK{"delay":3000000000}', Ack(AckKind.NAK, 3_000_000, b'{"delay":3000000000}')),
        (b'-NAK {"delay":-5}', Ack(AckKind.NAK, 0, b'{"delay":-5}')),
        (b"hello", None),
        (b"+ack", None),
        (b"+ACK words", None),
    ],
)
def test_acknowledgements_mean_what_clients_send(payload: bytes, expected: Ack | None) -> None:
    assert Ack.of(payload) == expected


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"deliver_policy": "last_per_subject"}, 10094),
        ({"filter_subject": "a", "filter_subjects": ["b"]}, 10136),
        ({"filter_subjects": ["a.*", "a.b"]}, 10138),
        ({"filter_subjects": [""]}, 10139),
        ({"deliver_subject": "a.*"}, 10079),
        ({"deliver_subject": "a", "max_waiting": 5}, 10080),
        ({"deliver_subject": "a", "flow_control": True}, 10108),
        ({"deliver_subject": "a", "idle_heartbeat": 1000}, 10083),
        ({"idle_heartbeat": 10**9}, 10088),
        ({"flow_control": True}, 10089),
        ({"max_deliver": 1, "backoff": [1, 2]}, 10116),
        ({"backoff": [-1]}, 10184),
        ({"ack_policy": "explicit", "ack_wait": -1}, 10183),
        ({"max_expires": 1000 - 1}, 10115),
        ({"filter_subjects": False}, 10025),
        ({"metadata": []}, 10025),
        ({"replay_policy": "original"}, 10052),
        ({"rate_limit_bps": 5}, 10052),
        ({"ack_policy": "some"}, 10025),
        ({"durable_name": "other"}, 10017),
        ({"name": "c", "description": "x" * 5000}, 10107),
        ({"metadata": {"jetstream.dead_letter": "\ud800"}}, 10025),
    ],
)
def test_contradictions_are_refused_with_the_numbers_of_nats(
    config: dict[str, object], number: int
) -> None:
    with pytest.raises(ApiError) as refused:
        created(config)
    assert refused.value.err_code == number


def test_a_batch_of_nothing_is_one_message_but_for_a_reader_that_waits() -> None:
    waits = b'{"batch":0,"expires":30000000000,"idle_heartbeat":15000000000}'
    assert pull_of(waits, b"inbox", NOW).left == 100
    for payload in (b"", b"0", b"{}", b'{"batch":0}', b'{"batch":0,"expires":30000000000}'):
        assert pull_of(payload, b"inbox", NOW).left == 1
    heard = b'{"expires":30000000000,"idle_heartbeat":15000000000}'
    assert pull_of(heard, b"inbox", NOW).left == 1


def test_a_pull_whose_time_is_over_ends_at_once() -> None:
    assert pull_of(b'{"batch":1,"expires":-5}', b"inbox", NOW).expires_us == NOW


def test_filters_may_cross_and_a_limit_below_none_is_the_default() -> None:
    config = created({"filter_subjects": ["a.*", "*.b"], "max_waiting": -1}).config
    assert config.filters == ("a.*", "*.b")
    assert config.max_waiting == WAITING_DEFAULT
