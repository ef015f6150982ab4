"""What is kept of a consumer is bounded, whatever a client asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetstream_server.jetstream_api.consumer_requests import CreateRequest
from jetstream_server.jetstream_api.errors import ApiError

LONG = 5_000


def create(**config: Any) -> CreateRequest:
    body = json.dumps({"stream_name": "s", "config": {"ack_policy": "explicit", **config}})
    return CreateRequest.of("CONSUMER.CREATE", "s", "", body.encode(), "c")


@pytest.mark.parametrize(
    "config",
    [
        {"sample_freq": "1" * LONG},
        {"sample_freq": "\u0663"},
        {"deliver_group": "g" * LONG, "deliver_subject": "_INBOX.a"},
        {"deliver_subject": "_INBOX." + "a" * LONG},
        {"description": "d" * LONG},
        {"name": "n" * LONG},
        {"filter_subject": "f" * LONG},
        {"metadata": {"m": "m" * 4 * LONG}},
    ],
)
def test_a_text_that_is_too_long_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        create(**config)


def test_usual_ones_are_kept() -> None:
    config = create(sample_freq="100%", deliver_group="g" * 255, deliver_subject="_INBOX.a").config
    assert (config.sample_freq, config.deliver_group) == ("100%", b"g" * 255)
