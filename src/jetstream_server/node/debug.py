"""The facts about a node that support needs, without secrets.

A setting is secret if its name says so (SECRET_WORDS), and so is what a URL has in front of its
last @. Such values are removed wherever else they appear too.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.version import VERSION
from jetstream_server.node.config import Config

HIDDEN = "***"
SECRET_WORDS = ("credential", "password", "token", "secret", "seed", "keys")
_FILE_WORDS = ("_file", "_files")
"""A file's name is not secret, its content is."""
_URLS = ("servers", "advertise")
"""URLs of NATS servers, which may lack nats:// in front."""
_VERSIONS = json.dumps(
    {
        "jetstream": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
)
_SHORT = 4
"""Shorter values would blot out half of every page, and are too short to be good secrets."""


def public(config: Config) -> str:
    """The configuration as JSON, without secrets."""
    return json.dumps(_without_secrets(config.model_dump(mode="json")), indent=1)


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each, name) for each in value]
    if not isinstance(value, str) or not value:
        return value
    if _is_secret(name):
        return HIDDEN
    login = _login(value, name)
    return value.replace(f"{login}@", f"{HIDDEN}@") if login else value


def _login(value: str, name: str) -> str:
    """What a URL says in front of its last @; a password may have others in it."""
    if "://" not in value and name not in _URLS:
        return ""
    return value.partition("://")[2 if "://" in value else 0].rpartition("@")[0]


def _is_secret(name: str) -> bool:
    return any(word in name for word in SECRET_WORDS) and not name.endswith(_FILE_WORDS)


def secrets_of(config: Config) -> list[str]:
    """The secret values themselves, the longest first."""
    found = {each for each in _secrets(config.model_dump(mode="json")) if len(each) >= _SHORT}
    return sorted(found, key=len, reverse=True)


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _secrets(each, name)
    elif isinstance(value, str):
        if _is_secret(name):
            yield value
            yield from value.split()
        login = _login(value, name)
        for each in (login, login.partition(":")[2]):
            yield each
            yield unquote(each)


def blotted(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, also where it is JSON, which may spell them otherwise."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN).replace(json.dumps(secret)[1:-1], HIDDEN)
    return text


def debug_node(config: Config, metrics: str, log: Iterable[str]) -> pb.DebugNodeResponse:
    """The facts about this node. log: JSON lines."""
    secrets = secrets_of(config)
    return pb.DebugNodeResponse(
        config=public(config),
        metrics=blotted(metrics, secrets),
        log=[blotted(line, secrets) for line in log],
        versions=_VERSIONS,
    )
