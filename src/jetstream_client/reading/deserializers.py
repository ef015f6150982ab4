"""Turns stored bytes into Python objects, for example with `value_deserializer=json.loads`.

A deserialiser is a function of bytes. It is not called for null: a tombstone's value and a missing
key stay None. Its exception reaches the caller, with a note that names the record if it takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, cast

from jetstream_client.reading.messages import Message
from jetstream_client.values.type_variables import K, V

Deserializer: TypeAlias = Callable[[bytes], V]


@dataclass(frozen=True, slots=True)
class Deserializers(Generic[V, K]):
    """The deserialisers of a reader; None: the bytes as they are stored."""

    key: Deserializer[K] | None = None
    value: Deserializer[V] | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def apply(self, message: Message) -> Message[V, K]:
        """`message` itself if there is nothing to do, otherwise a new one."""
        if not self:
            return cast("Message[V, K]", message)
        stream, offset = message.stream, message.offset
        return Message(
            stream,
            offset,
            message.timestamp_us,
            message.subject,
            self.key_of(message.key, stream, offset),
            self.value_of(message.value, stream, offset),
            message.header_block,
        )

    def each(self, messages: Iterable[Message]) -> Iterator[Message[V, K]]:
        """Call `apply` on each, one after the other. If it raises, the next call gets the same
        record again."""
        stored = iter(messages)
        return _Applied(self, stored) if self else cast("Iterator[Message[V, K]]", stored)

    def key_of(self, key: bytes | None, stream: str, offset: int) -> Any:
        return _deserialize(self.key, key, "key", stream, offset)

    def value_of(self, value: bytes | None, stream: str, offset: int) -> Any:
        return _deserialize(self.value, value, "value", stream, offset)


class _Applied(Iterator[Message[V, K]]):
    def __init__(self, deserializers: Deserializers[V, K], stored: Iterator[Message]) -> None:
        self._deserializers = deserializers
        self._stored = stored
        self._next: Message | None = None

    def __next__(self) -> Message[V, K]:
        if self._next is None:
            self._next = next(self._stored)
        message = self._deserializers.apply(self._next)
        self._next = None  # Not sooner: what cannot be deserialised is not passed over.
        return message


def _deserialize(
    deserializer: Deserializer[Any] | None, data: bytes | None, what: str, stream: str, offset: int
) -> Any:
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        with suppress(Exception):  # An error may refuse notes, as a frozen dataclass does.
            error.add_note(f"deserialising the {what} of record {offset} of stream {stream!r}")
        raise


def text_of(error: BaseException) -> str:
    """The message of an error of the program's own function, which may fail to say it."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever it raises
        return f"its text cannot be shown: {type(failure).__name__}"
