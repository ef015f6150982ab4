"""One of the two servers that are compared: what it answers, with times and names masked."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tests.support.differential.steps import Step

SILENCE: Final = "silence"
PATIENCE_SECONDS: Final = 2.0
"""After so long without an answer there is none. What this server answers comes within
milliseconds; the other one, which may leave a request without an answer, waits for no disk."""
ANSWER_SECONDS: Final = 30.0

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_NO_TIME = "0001-01-01T00:00:00Z"
_MASKED: Final = (
    "pause_remaining",
    "bytes",
    "memory",
    "storage",
    "total",
    "errors",
    "reserved_storage",
    "active",
    "consumer_count",  # Those that nobody uses end after a while.
)
"""Numbers that depend on the moment, or on how a server stores."""
_LABELS: Final = ("jetstream.", "_nats.")
"""Of a server's own metadata."""
_OWN: Final = ("cluster", "domain")
"""Who answers. Of these we say more, and in more answers."""
_CREATED: Final = "io.nats.jetstream.api.v1.consumer_create_response"
_PUSHED: Final = ("delivered", "ack_floor", "num_pending", "push_bound")
"""How much has been pushed by the time of the answer."""
NO_RESPONDERS: Final = "503"


class Side:
    """client: of the server. is_complete: whether every request is answered, so that an answer is
    waited for."""

    def __init__(self, client: NatsClient, *, is_complete: bool) -> None:
        self._client = client
        self._seconds = ANSWER_SECONDS if is_complete else PATIENCE_SECONDS
        self._replies: dict[str, list[str]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self.bodies: list[dict[str, Any]] = []
        """The answers that were JSON, as they came."""

    async def answers(self, steps: list[Step]) -> dict[str, Any]:
        """What is answered to each step, by its name."""
        return {step.name: await self.take(step) for step in steps}

    async def take(self, step: Step) -> list[Any]:
        """The answers, masked."""
        if step.kind == "subscribe":
            self._subscriptions[step.subject] = await self._client.subscribe(step.subject)
            await self._client.flush()
            return []
        if step.kind == "receive":
            return await self._received(step)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            found = await self._asked(step)
            if step.pending is None or found[0].get("num_pending") == step.pending:
                return found
            if time.monotonic() > deadline:
                return found

    async def _asked(self, step: Step) -> list[Any]:
        subject = self._replies[step.of][step.count] if step.kind == "ack" else step.subject
        count = step.count if step.kind == "many" else 1
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        headers = dict(step.headers) or None
        await self._client.publish(subject, step.payload, reply=inbox, headers=headers)
        messages: list[Msg] = []
        found: list[Any] = []
        while len(messages) < count and not (messages and _is_end(messages[-1])):
            message = await self._next(subscription)
            if message is None:
                found = [SILENCE]
                break
            messages.append(message)
        await subscription.unsubscribe()
        self._replies[step.name] = [each.reply for each in messages]
        self.bodies += [json.loads(each.data) for each in messages if is_body(each)]
        return _once([masked_message(each) for each in messages]) + found

    async def _received(self, step: Step) -> list[Any]:
        subscription = self._subscriptions[step.subject]
        found: list[Any] = []
        while len(found) < step.count:
            message = await self._next(subscription)
            if message is None:
                return [*found, SILENCE]
            if "Status" not in (message.headers or {}):
                found.append(masked_message(message))
        return found

    async def _next(self, subscription: Subscription) -> Msg | None:
        try:
            return await subscription.next_msg(self._seconds)
        except TimeoutError:
            return None


def _once(answers: list[Any]) -> list[Any]:
    """Without repetitions: how many heartbeats there are is a matter of time."""
    return [each for at, each in enumerate(answers) if at == 0 or each != answers[at - 1]]


def _is_end(message: Msg) -> bool:
    status = (message.headers or {}).get("Status", "")
    return bool(status) and status != "100"


def is_body(message: Msg) -> bool:
    """Whether an answer is JSON, not a stored message."""
    return not message.headers and not message.reply and message.data[:1] == b"{"


def masked_message(message: Msg) -> Any:
    """What clients look at."""
    headers = {key.strip(): masked(value) for key, value in (message.headers or {}).items()}
    if is_body(message):
        return masked(json.loads(message.data))
    description = headers.pop("Description", "").partition("\n")[0]
    if "Status" in headers:
        headers["Status"] = f"{headers['Status']} {description}".strip()
    if headers.get("Status") == NO_RESPONDERS:
        headers.pop("Nats-Subject", None)
    found: dict[str, Any] = {}
    if message.data:
        found["data"] = message.data.decode()
    if headers:
        found["headers"] = headers
    if not message.subject.startswith("_INBOX."):
        found["subject"] = message.subject
    if message.reply.startswith("$JS.ACK."):
        found["ack"] = _numbers(message.reply)
    return found


def _numbers(reply: str) -> dict[str, int]:
    """Of a delivered message, whichever form its reply subject has."""
    tokens = reply.split(".")
    tokens = tokens[6:11] if len(tokens) > 9 else tokens[4:]
    delivered, sequence, consumer_sequence, _, pending = map(int, tokens)
    return {
        "delivered": delivered,
        "sequence": sequence,
        "consumer sequence": consumer_sequence,
        "pending": pending,
    }


def masked(value: Any, key: str = "") -> Any:
    """JSON without what is another each time."""
    if isinstance(value, dict):
        if value.get("type") == _CREATED and "deliver_subject" in value.get("config", {}):
            value = {name: each for name, each in value.items() if name not in _PUSHED}
        return {
            name: masked(each, name)
            for name, each in value.items()
            if not name.startswith(_LABELS)
            and name not in _OWN
            and not (name == "metadata" and not masked(each))
        }
    if isinstance(value, list):
        return [masked(each, key) for each in value]
    if isinstance(value, str) and _TIME.fullmatch(value) and value != _NO_TIME:
        return "TIME"
    if key in _MASKED and isinstance(value, int) and not isinstance(value, bool):
        return "NUMBER"
    return value


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Each value of JSON by its path: `.state.messages`, `[0].name`."""
    if isinstance(value, dict) and value:
        items = [(f"{path}.{name}", each) for name, each in value.items()]
    elif isinstance(value, list) and value:
        items = [(f"{path}[{at}]", each) for at, each in enumerate(value)]
    else:
        return {path: value}
    return {name: each for at, part in items for name, each in flat(part, at).items()}
