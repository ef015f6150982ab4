"""The options of a processing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypedDict

from jetstream_client.publishing.ways import check_via
from jetstream_client.reading.deserializers import Deserializer, Deserializers
from jetstream_client.reading.group_consumer import SESSION_SECONDS, Listener
from jetstream_client.values.durations import Seconds, to_seconds
from jetstream_client.values.positions import Position
from jetstream_client.values.types import OnReset, Payload, ReadFrom, Via
from jetstream_protocol.cursor_names import check_cursor_name
from jetstream_protocol.errors import InvalidRequestError


class ProcessSettings(TypedDict, total=False):
    """Settings of `process`, with their defaults.

    concurrency (8): how many handlers run at a time. retries (3): how often a record is tried again
    after its handler raised an Exception: first after `retry_delay` seconds (0.1), then after twice
    as long each time, up to 30 s. dead_letter: the subject on which the record is published after
    the last attempt, with headers that say where it comes from and why it failed; None: the
    exception ends the processing. outstanding_max (1,000), outstanding_bytes (64 MiB): how many
    records, and bytes of them, may be read and not yet committed, because an earlier record has not
    ended. handler_timeout: seconds that a call of the handler may take; a longer one counts as
    failed. None: no limit. `AsyncClient` cancels it. A thread of `Client` cannot be ended: there
    the call runs on beside the next one, and what it returns is ignored. via ("nats"): which way
    outputs and dead letters are published, as in `publish`.

    start, stop, read_from, filter, key, on_reset, key_deserializer, value_deserializer: as in
    `consume`; the cursor passes over records that filter and key leave out. A group has no stop.
    instance, session_timeout, on_assigned, on_revoked: as in `consume_group`.
    """

    concurrency: int
    retries: int
    retry_delay: Seconds
    dead_letter: str | None
    via: Via
    handler_timeout: Seconds | None
    outstanding_max: int
    outstanding_bytes: int
    start: Position
    stop: Position | None
    read_from: ReadFrom
    filter: str
    key: Payload | None
    on_reset: OnReset
    key_deserializer: Deserializer[Any] | None
    value_deserializer: Deserializer[Any] | None
    instance: str
    session_timeout: Seconds
    on_assigned: Listener | None
    on_revoked: Listener | None


_DURATIONS = {"retry_delay", "handler_timeout", "session_timeout"}


def check_handler(handler: object) -> None:
    """Raise TypeError for what cannot be called: each record would fail, and be a dead letter."""
    if not callable(handler):
        raise TypeError(f"the handler must be a function of a Message, not {handler!r}")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The settings with their defaults. name: of the cursor or the group. is_shared: it
    is a group."""

    name: str
    is_shared: bool
    concurrency: int = 8
    retries: int = 3
    retry_delay: float = 0.1
    dead_letter: str | None = None
    via: Via = "nats"
    handler_timeout: float | None = None
    outstanding_max: int = 1_000
    outstanding_bytes: int = 64 * 1024 * 1024
    start: Position = "earliest"
    stop: Position | None = None
    read_from: ReadFrom = "leader"
    filter: str = ""
    key: Payload | None = None
    on_reset: OnReset = "error"
    key_deserializer: Deserializer[Any] | None = None
    value_deserializer: Deserializer[Any] | None = None
    instance: str = ""
    session_timeout: float = SESSION_SECONDS
    on_assigned: Listener | None = None
    on_revoked: Listener | None = None

    @classmethod
    def of(cls, cursor: str | None, group: str | None, settings: ProcessSettings) -> ProcessOptions:
        """Raises TypeError for an unknown setting, InvalidRequestError for a wrong value."""
        names = [field.name for field in fields(cls)][2:]
        unknown = [name for name in settings if name not in names]
        if unknown:
            raise TypeError(f"unknown setting {unknown[0]!r}: there are {', '.join(names)}")
        name = cursor if group is None else group
        if name is None or (cursor is not None and group is not None):
            raise InvalidRequestError("say either cursor=NAME or group=NAME")
        given: dict[str, Any] = dict(settings)
        for each in _DURATIONS & given.keys():
            given[each] = to_seconds(each, given[each])
        options = cls(name, group is not None, **given)
        options._check()
        return options

    def _check(self) -> None:
        check_cursor_name(self.name)
        check_via(self.via)
        numbers: dict[str, tuple[Any, int]] = {
            "concurrency": (self.concurrency, 1),
            "retries": (self.retries, 0),
            "retry_delay": (self.retry_delay, 0),
            "outstanding_max": (self.outstanding_max, 1),
            "outstanding_bytes": (self.outstanding_bytes, 1),
        }
        for what, (number, least) in numbers.items():
            if not isinstance(number, int | float) or number < least:
                raise InvalidRequestError(f"{what} is {number!r}; it must be at least {least}")
        seconds = self.handler_timeout
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise InvalidRequestError(f"handler_timeout is {seconds!r}; it must be more than 0")
        if self.is_shared and self.stop is not None:
            raise InvalidRequestError("a group has no stop: say cursor=NAME, or stop_event")
        if not self.is_shared and (self.instance or self.on_assigned or self.on_revoked):
            raise InvalidRequestError("instance, on_assigned and on_revoked are for groups")

    @property
    def deserializers(self) -> Deserializers[Any, Any]:
        return Deserializers(self.key_deserializer, self.value_deserializer)
