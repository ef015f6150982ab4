from collections.abc import Sequence
from typing import Any

from jetstream_protocol.columns import Body

class Columns:
    def __init__(
        self,
        fields: Sequence[tuple[int, bool, tuple[bytes, ...], Any]],
        layouts: tuple[int, Sequence[tuple[tuple[int, ...], Any]]] | None = None,
    ) -> None: ...
    def add(
        self,
        offsets: Body,
        offsets_at: int,
        data: Body,
        data_at: int,
        data_length: int,
        validity: Body | None,
        validity_at: int,
        start: int,
        stop: int,
    ) -> None: ...
    def check(
        self,
        offsets: Body,
        offsets_at: int,
        data: Body,
        data_at: int,
        data_length: int,
        validity: Body | None,
        validity_at: int,
        start: int,
        stop: int,
    ) -> tuple[int, int]: ...
    def take(self) -> tuple[int, Any, list[Any]]: ...
