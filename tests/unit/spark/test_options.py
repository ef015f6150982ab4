"""Every option is checked before anything is done, and every error says what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import NAMES, RECORDS_PER_TASK, read_options, write_options

MANUAL = Path(__file__).parents[3] / "docs/spark.md"

Mode = Literal["read", "batch", "stream"]


def test_a_batch_read_is_from_the_earliest_record_to_the_latest_by_default() -> None:
    options = read_options({"streams": "a, b@b.>"}, "batch")
    assert options.selection.names == ("a", "b@b.>")
    assert (options.starting.default, options.ending.default) == ("earliest", "latest")
    assert options.fail_on_data_loss
    assert options.columns == ("stream", "subject", "offset", "timestamp", "key", "value")
    assert options.max_records_per_partition == RECORDS_PER_TASK


def test_a_streaming_read_is_from_the_latest_record_on_by_default() -> None:
    assert read_options({"streams": "a"}, "stream").starting.default == "latest"


def test_names_of_options_are_told_apart_without_regard_to_case() -> None:
    options = read_options({"STREAMS": "a", "failondataloss": "FALSE"}, "batch")
    assert not options.fail_on_data_loss


def test_what_load_is_given_is_the_list_of_streams() -> None:
    assert read_options({"path": "a,b"}, "batch").selection.names == ("a", "b")


def test_numbers_below_zero_mean_the_ends_as_in_kafkas_source() -> None:
    starting = read_options(
        {"streams": "a,b", "startingOffsets": '{"a": -2, "b@x": 7}'}, "batch"
    ).starting
    assert starting.place_for("a", "a@y") == "earliest"
    assert starting.place_for("b", "b@x") == 7
    assert starting.place_for("c", "c@z") == "earliest"


def test_times_are_milliseconds_or_iso() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "1769860800000"):
        options = read_options({"streams": "a", "startingTimestamp": text}, "batch")
        assert options.starting.default == noon


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("500ms", 0.5), ("10s", 10.0), ("15m", 900.0), ("1h", 3600.0)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert read_options({"streams": "a", "timeout": text}, "batch").config.timeout == seconds


WRONG: list[tuple[Mode, dict[str, str], str]] = [
    ("batch", {"servers": "http://x:9292"}, "say host:port, without a scheme"),
    ("batch", {"startingOffsets": '{"a": 1'}, "say earliest, latest or JSON such as"),
    ("batch", {"startingOffsets": "[]"}, "say earliest, latest or JSON such as"),
    ("batch", {"startingOffsets": '{"a": -3}'}, "say an offset from 0 on, -2 or earliest"),
    ("batch", {"startingOffsets": '{"a": true}'}, "say an offset from 0 on, -2 or earliest"),
    ("batch", {"startingOffsets": "latest"}, "say earliest, offsets or a time"),
    ("batch", {"startingOffsets": '{"a": -1}'}, "say earliest, offsets or a time"),
    ("batch", {"endingOffsets": "earliest"}, "say latest, offsets or a time"),
    ("batch", {"startingTimestamp": "2026-01-01T00:00:00"}, "add Z or +01:00 at its end"),
    ("batch", {"startingTimestamp": "yesterday"}, "milliseconds since 1970, or ISO 8601"),
    ("batch", {"startingTimestamp": "9" * 30}, "milliseconds since 1970, or ISO 8601"),
    (
        "batch",
        {"startingTimestamp": "1", "startingOffsets": "earliest"},
        "both startingOffsets and startingTimestamp are given: keep one of them",
    ),
    ("batch", {"streamPattern": ".*"}, "both streams and streamPattern are given: keep one"),
    ("batch", {"path": "b"}, "both option streams and load('b') name streams: keep one of them"),
    ("read", {"paths": '["a", "b"]'}, "say streams, a list with commas, instead"),
    ("batch", {"streamPattern": "[", "streams": ""}, "mend it, for example orders_.*"),
    ("batch", {"streams": ""}, "add option streams"),
    ("batch", {"subject": "a..b"}, "subject"),
    ("batch", {"minPartitions": "many"}, "say one from 1 on"),
    ("batch", {"minPartitions": "-1"}, "say one from 1 on"),
    ("batch", {"maxRecordsPerPartition": "0"}, "say one from 1 on"),
    ("batch", {"includeHeaders": "yes"}, "say one of them"),
    ("batch", {"columns": "offset,headers"}, "headers need includeHeaders=true"),
    ("batch", {"columns": "partition"}, "say some of stream, subject, offset"),
    ("batch", {"startingOffsetsByTimestamp": "1"}, "names no stream: say JSON such as"),
    ("batch", {"startingOffsetsByTimestamp": '{"a": "x"}'}, "milliseconds since 1970, or ISO 8601"),
    (
        "batch",
        {"startingOffsetsByTimestamp": '{"a": 1}', "startingTimestamp": "1"},
        "both startingTimestamp and startingOffsetsByTimestamp are given: keep one of them",
    ),
    ("batch", {"readFrom": "follower"}, "say any, leader or nearest"),
    ("batch", {"timeout": "soon"}, "say for example 30s, 15m or 1h"),
    ("batch", {"timeout": "0"}, "say for example 30s, 15m or 1h"),
    ("batch", {"minOffsetsPerTrigger": "5"}, "means nothing to a batch read: leave it out"),
    ("batch", {"pushDownFilters": "true"}, "startingOffsets, startingTimestamp or subject instead"),
    ("read", {"natsTls": "true"}, "means nothing to a read: leave it out"),
    ("read", {"maxoffsetpertrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
    ("read", {"kafka.bootstrap.servers": "x:1"}, "say servers instead"),
    ("read", {"subscribePattern": ".*"}, "say streamPattern instead"),
    ("read", {"xyz": "1"}, "known are servers, timeout, streams"),
]


@pytest.mark.parametrize(("mode", "given", "advice"), WRONG, ids=lambda each: str(each)[:50])
def test_what_cannot_be_meant_is_answered_with_what_to_do(
    mode: Mode, given: dict[str, str], advice: str
) -> None:
    with pytest.raises(OptionError) as raised:
        read_options({"streams": "a", **given}, mode)
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_write_takes_files_for_secrets_and_no_secrets() -> None:
    options = write_options({"subject": "x", "natsCredentials": "/a.creds", "natsTls": "true"})
    assert options.config.nats_options.credentials == "/a.creds"
    assert options.config.nats_options.tls
    with pytest.raises(OptionError, match="unknown option 'password'"):
        write_options({"subject": "x", "password": "hunter2"})


def test_every_option_is_in_the_manual() -> None:
    page = MANUAL.read_text()
    missing = {name for names in NAMES.values() for name in names if f"`{name}`" not in page}
    assert missing == set()


def test_a_cursor_shows_a_streaming_read_only_and_has_a_name() -> None:
    assert read_options({"streams": "orders", "cursor": "nightly"}, "stream").cursor == "nightly"
    with pytest.raises(OptionError, match="means nothing to a batch read"):
        read_options({"streams": "orders", "cursor": "nightly"}, "batch")
    with pytest.raises(OptionError, match="is no name"):
        read_options({"streams": "orders", "cursor": "a b"}, "stream")


@pytest.mark.parametrize("make", [lambda o: read_options(o, "batch"), write_options])
def test_a_token_is_taken_and_shown_nowhere(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_TOKEN", "from-the-environment")
    required = {} if make is write_options else {"streams": "a"}
    options = make({**required, "token": "planted"})
    assert options.config.token == "planted"
    assert "planted" not in repr(options)
    by_file = make({**required, "tokenFile": "/run/token"}).config
    assert (by_file.token, by_file.token_file) == ("", "/run/token")
    assert make(required).config.token == "from-the-environment"
    for wrong in (
        {"token": "planted", "tokenFile": "/run/token"},
        {"token": "two planted"},
        {"token": "planted", "tokn": "planted"},
    ):
        with pytest.raises(OptionError) as caught:
            make({**required, **wrong})
        assert "planted" not in str(caught.value)


def test_a_write_signs_in_to_nats_as_the_environment_says_unless_options_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JETSTREAM_NATS_CREDS", "/x/me.creds")
    monkeypatch.setenv("JETSTREAM_NATS_CA", "/x/ca.pem")
    write = {"servers": "a:1", "subject": "a.b"}
    for given in (write, {**write, "nats": "nats://n:4222"}):
        found = write_options(given).config.nats_options
        assert (found.credentials, found.tls_ca) == ("/x/me.creds", "/x/ca.pem")
    for option in ({"natsNkeySeed": "/y/seed"}, {"natsTls": "false"}):
        found = write_options({**write, **option}).config.nats_options
        assert (found.credentials, found.tls_ca) == (None, None)
        assert found.nkey_seed == option.get("natsNkeySeed")


def test_a_write_goes_by_nats_unless_it_says_which_way() -> None:
    assert write_options({"subject": "x"}).via == "nats"
    for way in ("nats", "direct", "auto"):
        assert write_options({"subject": "x", "via": way.upper()}).via == way
    assert write_options({"via": "auto", "nats": "nats://n:4222"}).config.nats == ("nats://n:4222",)
    with pytest.raises(OptionError, match="via 'kafka' is no choice: say nats, direct or auto"):
        write_options({"via": "kafka"})


@pytest.mark.parametrize(
    ("option", "value"), [("nats", "nats://n:4222"), ("natsTls", "false"), ("natsNkeySeed", "/s")]
)
def test_a_write_without_nats_takes_no_option_of_nats(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} means nothing with via=direct"):
        write_options({"via": "direct", option: value})


def test_a_comma_in_a_subject_is_written_with_a_backslash() -> None:
    found = read_options({"streams": "a", "subject": r"a.b\,c, d.>"}, "batch")
    assert found.selection.subjects == ("a.b,c", "d.>")
