"""What a client's configuration of a stream is in our settings, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_server.jetstream_api.answers import MESSAGE_BYTES_MAX
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.jetstream_api.stream_configs import wanted_stream

BUCKET: dict[str, Any] = {
    "name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1, "discard": "new",
    "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True, "max_msgs": -1,
    "max_bytes": -1, "max_msg_size": -1, "max_consumers": -1, "max_age": 0, "num_replicas": 1,
    "duplicate_window": 120 * 10**9, "storage": "file", "retention": "limits",
    "consumer_limits": {}, "metadata": {"_nats.ver": "2.15"}, "placement": None, "sources": [],
    "compression": "none", "description": "", "republish": None,
}  # fmt: skip
"""As clients send it, with all that is empty."""


def test_a_bucket_is_a_stream_that_is_compacted_by_subject() -> None:
    wanted = wanted_stream("KV_b", BUCKET)
    assert (wanted.name, wanted.subject) == ("KV_b", "$KV.b.>")
    assert wanted.settings == {
        "replicas": 1, "max_messages": 0, "max_bytes": 0, "max_age_us": 0, "max_message_bytes": 0,
        "compact": True, "key": "subject", "duplicate_window_us": 120_000_000, "description": "",
        "labels": "",
    }  # fmt: skip


def test_a_larger_message_than_clients_can_be_told_of_is_refused() -> None:
    body = {"name": "s", "max_msg_size": MESSAGE_BYTES_MAX}
    assert wanted_stream("s", body).settings["max_message_bytes"] == MESSAGE_BYTES_MAX
    with pytest.raises(ApiError, match="invalid JSON: max_msg_size") as refused:
        wanted_stream("s", body | {"max_msg_size": MESSAGE_BYTES_MAX + 1})
    assert refused.value.err_code == 10025


def test_limits_are_ours_in_our_units() -> None:
    config = {"name": "a%2Eb", "max_age": 5 * 10**9, "max_msgs": 7, "max_bytes": 8,
              "max_msg_size": 9}  # fmt: skip
    wanted = wanted_stream("a%2Eb", config)
    assert (wanted.name, wanted.subject) == ("a.b", "a.b")
    assert wanted.settings == {
        "replicas": 1, "max_messages": 7, "max_bytes": 8, "max_age_us": 5_000_000,
        "max_message_bytes": 9, "compact": False, "key": "record", "description": "", "labels": "",
    }  # fmt: skip


def test_words_about_a_stream_are_kept() -> None:
    labels = {"b": "é", "a": "1", "_nats.ver": "2.15", "jetstream.name": "other"}
    config = {"name": "s", "description": "orders", "metadata": labels}
    settings = wanted_stream("s", config).settings
    assert (settings["description"], settings["labels"]) == ("orders", '{"a": "1", "b": "é"}')


@pytest.mark.parametrize(
    ("field", "value", "number"),
    [
        ("name", "other", 10056),
        ("subjects", "x", 10025),
        ("subjects", ["a", "b"], 10052),
        ("subjects", ["a b"], 10052),
        ("max_msgs", "many", 10025),
        ("max_age", 1, 10052),
        ("max_age", True, 10025),
        ("sealed", True, 10052),
        ("first_seq", 5, 10052),
        ("metadata", ["x"], 10025),
        ("metadata", {"team": 1}, 10025),
        ("metadata", {"team": "a" * 2048}, 10052),
        ("metadata", {"team": "\ud800"}, 10025),
        ("description", 1, 10025),
        ("description", "a" * 1025, 10052),
        ("placement", {"cluster": "east"}, 10052),
        ("consumer_limits", {"max_ack_pending": 5}, 10052),
        ("no_ack", True, 10052),
        ("discard", "other", 10025),
        ("discard", "new", 10052),
        ("max_msgs_per_subject", 2, 10052),
        ("storage", "tape", 10052),
        ("allow_msg_ttl", True, 10052),
    ],
)
def test_what_we_do_not_have_is_refused(field: str, value: object, number: int) -> None:
    with pytest.raises(ApiError) as refused:
        wanted_stream("s", {"name": "s", "subjects": ["s.>"], field: value})
    assert refused.value.err_code == number


def test_what_jetstream_does_not_know_is_ignored() -> None:
    assert wanted_stream("s", {"name": "s", "frobnicate": 5}).subject == "s"
