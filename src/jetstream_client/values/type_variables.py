"""What readers, tables and publishers are generic in, for type checkers: `Consumer[Order]`.

Values and keys are bytes where nothing is said, and anything that can be sent for publishers.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Generic

from jetstream_client.values.types import Payload, Value

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
    K = TypeVar("K", default=bytes)
    S = TypeVar("S", default=Value)
    SK = TypeVar("SK", default=Payload)
else:  # Python 3.11 knows no defaults.
    from typing import TypeVar

    V = TypeVar("V")
    K = TypeVar("K")
    S = TypeVar("S")
    SK = TypeVar("SK")


class Typed(Generic[V, K]):
    """Generic in the type of values, and perhaps in that of keys."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)


class Serialized(Generic[S, SK]):
    """Generic in what can be sent as a value, and perhaps as a key."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)
