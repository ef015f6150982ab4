"""What a node tells for support holds no secret, wherever it was planted."""

from __future__ import annotations

import json

import pytest

from jetstream_protocol.version import VERSION
from jetstream_server.node import metrics
from jetstream_server.node.config import Config
from jetstream_server.node.debug import HIDDEN, debug_node, public, secrets_of
from tests.support.descriptors import no_descriptor_left

PLANTED = "pl4nted"


def config() -> Config:
    return Config.model_validate(
        {
            "credential": f"{PLANTED}-credential",
            "nats": {
                "servers": [f"nats://{PLANTED}-user:{PLANTED}-password@127.0.0.1:4222"],
                "user": "me",
                "password": f"{PLANTED}-word",
            },
        }
    )


def test_secrets_are_left_out_and_the_rest_is_there() -> None:
    text = public(config())
    assert PLANTED not in text
    told = json.loads(text)
    assert told["credential"] == told["nats"]["password"] == HIDDEN
    assert told["nats"]["servers"] == [f"nats://{HIDDEN}@127.0.0.1:4222"]
    assert told["log"]["segment_bytes"] == 256 * 1024**2
    assert told["nats"]["token"] == "", "that none is set is no secret"


def test_a_secret_that_has_found_its_way_into_a_log_line_is_blotted_out() -> None:
    told = debug_node(config(), f"x {PLANTED}-word", [f"login as {PLANTED}-password failed"])
    assert PLANTED not in str(told)
    assert told.log == [f"login as {HIDDEN} failed"]
    assert told.metrics == f"x {HIDDEN}"


@pytest.mark.parametrize(
    "url",
    [
        f"me:{PLANTED}@127.0.0.1:4222",
        f"{PLANTED}@127.0.0.1:4222",
        f"nats://me:p@{PLANTED}@127.0.0.1:4222",
        f"nats://me:{PLANTED}:p@127.0.0.1:4222",
        f"tls://me:%40{PLANTED}@127.0.0.1:4222",
    ],
)
def test_a_login_is_hidden_however_a_server_s_url_is_written(url: str) -> None:
    named = Config.model_validate({"nats": {"servers": [url], "advertise": [url]}})
    told = debug_node(named, "", [])
    assert PLANTED not in str(told)
    scheme = url.partition("://")[0] + "://" if "://" in url else ""
    assert json.loads(told.config)["nats"]["servers"] == [f"{scheme}{HIDDEN}@127.0.0.1:4222"]


def test_a_login_is_blotted_out_as_url_as_text_and_as_json() -> None:
    named = Config.model_validate(
        {"nats": {"servers": ["nats://me:p%C3%A4ss%40w@127.0.0.1:4222"]}, "credential": 'a"b\\c"'}
    )
    lines = ["p%C3%A4ss%40w", "päss@w", json.dumps("päss@w"), json.dumps('a"b\\c"')]
    told = debug_node(named, "", lines)
    assert list(told.log) == [HIDDEN, HIDDEN, f'"{HIDDEN}"', f'"{HIDDEN}"']


def test_a_file_is_named_and_not_hidden() -> None:
    named = Config.model_validate({"nats": {"nkey_seed_file": "/etc/seed.nk"}})
    assert "/etc/seed.nk" in public(named)
    assert secrets_of(named) == []


def test_a_node_without_a_free_descriptor_says_what_it_is() -> None:
    """Just then somebody looks."""
    with no_descriptor_left():
        told = debug_node(config(), "", [])
        names = [each.name for each in metrics.families(None)]
    assert json.loads(told.versions)["jetstream"] == VERSION
    assert "jetstream_build_info" in names
