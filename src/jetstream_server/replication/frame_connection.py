"""What replication needs of a connection that carries frames; FrameSocket is the real one.

Frames arrive once and in order, as long as the connection lasts. One task may read and one may
write at a time. Errors, of every method that reads or writes: EOFError when the peer has left,
InvalidRequestError for what is no frame or none that is wanted now, TimeoutError for a peer that
takes nothing or does not end a frame it began, OSError for the rest; after any of them the
connection is of no use. An UnreadableSliceError comes before the first byte of a frame: another one
may be sent instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from jetstream_protocol.errors import StorageError
from jetstream_protocol.frames import Kind
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import storage_error
from jetstream_server.replication.frame_reader import Frame

Head = TypeVar("Head", bound=Message)


class UnreadableSliceError(StorageError):
    """Nothing was sent, because this slice cannot be read."""

    def __init__(self, slice_: LogSlice, error: OSError) -> None:
        super().__init__(storage_error(error, f"reading {slice_.path}").message)
        self.slice = slice_


class FrameConnection(Protocol):
    """See the module. Whoever has it closes it."""

    def close(self) -> None: ...

    def shut_down(self) -> None:
        """Wake whoever reads or writes: the connection has ended."""

    @property
    def peer(self) -> str:
        """The other end's host; "" when it has gone."""

    @property
    def peer_has_left(self) -> bool:
        """Whether the peer has closed its end, however much of what it sent is still unread."""

    # Reading.

    @property
    def bytes_received(self) -> int: ...

    async def read_any(self, *kinds: Kind) -> Frame:
        """The next frame, which must be of one of these kinds."""

    async def read_frame(self, kind: Kind, cls: type[Head]) -> tuple[int, Head]:
        """A frame of that kind: its correlation and head."""

    async def read_each(
        self, kind: Kind, cls: type[Head], handler: Callable[[Head, bytes | memoryview], None]
    ) -> None:
        """Hand each frame of that kind, its head and tail, to `handler` as soon as it is here.
        Ends by an error only, the handler's included."""

    def pause_reading(self) -> None:
        """Let the peer wait: nothing more is handed out."""

    def resume_reading(self) -> None: ...

    # Writing.

    async def send(self, kind: Kind, correlation: int, head: Message) -> None:
        """Send a frame without tail."""

    async def send_slices(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[LogSlice]
    ) -> None:
        """Send a frame whose tail is the slices, back to back, straight from their files."""

    def start(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[LogSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        """Send such a frame as far as that needs no waiting. None: it is sent; otherwise the rest
        is to be awaited before anything else is sent."""


Dial = Callable[[tuple[str, int]], Awaitable[FrameConnection]]
"""Connects to a node's data plane. Raises OSError."""
