"""Types and durations of the SDK, as programs write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jetstream_client import (
    Client,
    ClientClosedError,
    Consumer,
    InvalidRequestError,
    Message,
    UnavailableError,
)
from jetstream_client.cli.units import parse_duration
from jetstream_client.processing.options import ProcessOptions
from jetstream_client.values.durations import to_seconds, to_us
from tests.typed_sdk import Orders, Plain


def test_what_type_checkers_take_can_be_written_in_a_running_program() -> None:
    assert Plain.__origin__ is Message  # type: ignore[attr-defined]
    assert Orders.__origin__ is Consumer  # type: ignore[attr-defined]
    message: Message[bytes] = Message("s", 1, 2, "a", None, b"v")
    assert isinstance(message, Message)
    assert message == Message("s", 1, 2, "a", None, b"v")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("250ms", 0.25), ("0", 0), (1.5, 1.5)],
)
def test_a_duration_is_text_as_on_the_command_line(given: str | float, seconds: float) -> None:
    assert to_seconds("max_wait", given) == seconds
    assert to_us("max_age", given) == round(seconds * 1_000_000)
    assert parse_duration(given) == seconds
    assert to_seconds("max_wait", timedelta(seconds=seconds)) == seconds


@pytest.mark.parametrize("given", ["", "7", "7 d", "d", "1h30", "-1s", "٣s"])
def test_text_that_is_no_duration_is_refused_with_its_name_and_an_example(given: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"max_age .* say 90s, 1h30m or 7d"):
        to_us("max_age", given)


def test_processing_takes_durations_as_text() -> None:
    options = ProcessOptions.of("billing", None, {"retry_delay": "1m", "handler_timeout": "2s"})
    assert (options.retry_delay, options.handler_timeout) == (60, 2)


def test_a_closed_client_has_an_error_of_its_own() -> None:
    client = Client("127.0.0.1:1", timeout="5s")
    client.close()
    with pytest.raises(ClientClosedError) as caught:
        client.describe_cluster()
    assert not caught.value.retriable
    assert isinstance(caught.value, InvalidRequestError | UnavailableError)
    assert client.config.timeout == 5
