"""The facts about a node that support needs, without secrets.

A setting is secret if its name says so (SECRET_WORDS), and so is the part of a URL before the @.
Such values are removed wherever else they appear too.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.node.config import Config

HIDDEN = "***"
SECRET_WORDS = ("credential", "password", "token", "secret", "seed", "keys")
_FILE_WORDS = ("_file", "_files")
"""A file's name is not secret, its content is."""
_USER_INFO = re.compile(r"(?<=://)[^@/\s]*(?=@)")
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
    return HIDDEN if _is_secret(name) else _USER_INFO.sub(HIDDEN, value)


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
        for user_info in _USER_INFO.findall(value):
            yield user_info
            yield user_info.partition(":")[2]


def blotted(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def debug_node(config: Config, metrics: str, log: Iterable[str]) -> pb.DebugNodeResponse:
    """The facts about this node. log: JSON lines."""
    secrets = secrets_of(config)
    return pb.DebugNodeResponse(
        config=public(config),
        metrics=blotted(metrics, secrets),
        log=[blotted(line, secrets) for line in log],
        versions=json.dumps(
            {
                "jetstream": version("jetstream-log"),
                "python": platform.python_version(),
                "system": platform.platform(),
            }
        ),
    )
