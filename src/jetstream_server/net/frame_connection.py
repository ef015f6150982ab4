"""The interface of a connection that carries frames; FrameSocket is the real one.

Frames arrive once and in order while the connection lasts. One task may read and one may write at a
time. Every method that reads or writes may raise: EOFError when the peer has closed,
InvalidRequestError for an invalid or unexpected frame, TimeoutError when the peer reads nothing or
does not complete a frame, OSError otherwise. After any of them the connection is unusable. An
UnreadableSliceError is raised before the first byte of a frame: another frame may be sent instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from jetstream_protocol.errors import StorageError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_server.disk_errors import storage_error
from jetstream_server.net.file_slice import FileSlice
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.net.tls import PeerIdentity

CONNECT_SECONDS = 1.0

Head = TypeVar("Head", bound=Message)


class UnreadableSliceError(StorageError):
    """This slice cannot be read. Nothing was sent."""

    def __init__(self, slice_: FileSlice, error: OSError) -> None:
        super().__init__(storage_error(error, f"reading {slice_.path}").message)
        self.slice = slice_


class FrameConnection(Protocol):
    """See the module. The owner closes it."""

    def close(self) -> None: ...

    def shut_down(self) -> None:
        """End the connection. Tasks that read or write get an error."""

    @property
    def peer(self) -> str:
        """The peer's host; "" when it has gone."""

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """Identity in the peer's certificate; None without TLS or without a certificate."""

    @property
    def peer_has_left(self) -> bool:
        """Whether the peer has closed its end, even if some of its bytes are still unread."""

    # Reading.

    @property
    def bytes_received(self) -> int: ...

    async def read_any(self, *kinds: Kind) -> Frame:
        """The next frame, which must be of one of these kinds."""

    async def read_frame(self, kind: Kind, cls: type[Head]) -> tuple[int, Head]:
        """Read a frame of that kind, and return its correlation and head."""

    async def read_each(
        self, kind: Kind, cls: type[Head], handler: Callable[[Head, bytes | bytearray], None]
    ) -> None:
        """Pass head and tail of each frame of that kind to `handler` as it arrives. Ends only with
        an error, which may be the handler's."""

    async def take_each(self, handler: Callable[[Frame], bool], *kinds: Kind) -> None:
        """Pass each frame of these kinds to `handler` as it arrives, until it returns True."""

    def budgeted(self, budget: ReceiveBudget, holder: str) -> None:
        """From now on read long tails only as far as the budget has room for them."""

    def pause_reading(self) -> None:
        """Pass on no more frames for now, which makes the peer wait."""

    def resume_reading(self) -> None: ...

    # Writing.

    async def send(self, kind: Kind, correlation: int, head: Message) -> None:
        """Send a frame without tail."""

    async def send_slices(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[FileSlice]
    ) -> None:
        """Send a frame whose tail is the slices, back to back, directly from their files."""

    async def send_tail(self, kind: Kind, correlation: int, head: Message, tail: bytes) -> None:
        """Send a frame with this tail."""

    def start(
        self, kind: Kind, correlation: int, head: Message, slices: Sequence[FileSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        """Send such a frame as far as possible without waiting. None: it is sent; otherwise await
        the result before sending anything else."""

    def start_encoded(
        self, kind: Kind, correlation: int, head: bytes, slices: Sequence[FileSlice] = ()
    ) -> Coroutine[Any, Any, None] | None:
        """Like `start`, for a head that is encoded."""

    def start_frame(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        """Like `start`, for a whole frame in memory."""

    def read_short(self, slices: Sequence[FileSlice]) -> bytes | bytearray | None:
        """The bytes of the slices; None if they are long, or reading them would have to wait."""

    def start_tail(
        self, kind: Kind, correlation: int, head: bytes, tail: bytes | bytearray
    ) -> Coroutine[Any, Any, None] | None:
        """Like `start`, for a head that is encoded and a tail that is in memory."""


Dial = Callable[[tuple[str, int]], Awaitable[FrameConnection]]
"""Connects to a node's data plane. Raises OSError."""
