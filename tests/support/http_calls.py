"""Requests to the HTTP port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import Any


@dataclass(frozen=True)
class Answer:
    """data: from JSON, if it is."""

    status: int
    headers: Message
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of the error."""
        return str(self.data["error"]["code"])


def call(
    http: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """body: sent as JSON, unless it is bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    known = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(
        f"{http}{path}", data=data, headers=known | (headers or {}), method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())
