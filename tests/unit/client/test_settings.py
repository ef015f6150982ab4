"""Settings as programs and people write them, and as the wire has them."""

from __future__ import annotations

from datetime import timedelta

import pytest
import typer

from jetstream_client import AsyncClient, InvalidRequestError
from jetstream_client.cli.units import duration_text, parse_duration, parse_size, parse_timeout
from jetstream_client.transport.wire import to_config


def test_seconds_and_timedeltas_become_microseconds() -> None:
    assert to_config({"max_age": 1.5}).max_age_us == 1_500_000
    assert to_config({"max_age": timedelta(hours=1)}).max_age_us == 3_600_000_000


def test_none_is_left_to_the_server_and_zero_is_said() -> None:
    config = to_config({"max_age": None, "max_bytes": 0})
    assert not config.HasField("max_age_us")
    assert config.HasField("max_bytes")


def test_a_setting_there_is_none_of_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="unknown setting 'max_agee'"):
        to_config({"max_agee": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("age", [-1, "1", "1 h", float("inf"), float("nan")])
def test_what_is_no_duration_is_refused(age: object) -> None:
    with pytest.raises(InvalidRequestError, match="max_age"):
        to_config({"max_age": age})  # type: ignore[typeddict-item]


def test_what_no_field_can_hold_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="invalid max_bytes 1208925819614629174706176"):
        to_config({"max_bytes": 1 << 80})
    with pytest.raises(InvalidRequestError, match="invalid group"):
        to_config({"group": "\udcff"})
    with pytest.raises(InvalidRequestError, match="invalid max_messages 'many'"):
        to_config({"max_messages": "many"})  # type: ignore[typeddict-item]
    with pytest.raises(InvalidRequestError, match="invalid compact 'yes': say True or False"):
        to_config({"compact": "yes"})  # type: ignore[typeddict-item]
    with pytest.raises(InvalidRequestError, match="max_bytes '10 gallons' is not a size: say"):
        to_config({"max_bytes": "10 gallons"})


def test_sizes_may_be_text_as_on_the_command_line() -> None:
    assert to_config({"max_bytes": "10GiB", "segment_bytes": "1MB"}).max_bytes == 10 << 30
    publisher = AsyncClient("localhost:1").publisher("x", max_bytes="64KiB", buffer_bytes="1MiB")
    assert (publisher.options.max_bytes, publisher.options.buffer_bytes) == (1 << 16, 1 << 20)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5s", 1.5), ("250ms", 0.25), ("90s", 90), ("1h30m", 5400), ("7d", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["0", "250ms", "1.5ms", "0.001ms", "90ms", "1m30s", "1h30m", "7d", "1d2h3m4s5.006ms"]
)
def test_durations_are_shown_as_they_are_written(text: str) -> None:
    assert duration_text(parse_duration(text)) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1KiB", 1024), ("9GB", 9 * 10**9), ("1.5M", 1_500_000), ("2 MiB", 2 << 20)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "h", "1x", "1h 2", "-1s", "7", "1.5", "1h30"])
def test_what_is_no_duration_on_the_command_line_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "GB", "1EB", "-1"])
def test_what_is_no_size_on_the_command_line_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("given", "seconds"), [("5", 5), ("0.5", 0.5), ("500ms", 0.5), ("2m", 120)]
)
def test_a_timeout_needs_no_unit(given: str, seconds: float) -> None:
    assert parse_timeout(given) == seconds


@pytest.mark.parametrize("given", ["", "0", "0s", "-1", "nan", "inf", "1e400", "x", "5 s", "5x"])
def test_what_is_no_timeout_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_timeout(given)
