"""The parts of a client are written as classes of their own; errors and tools name the client."""

from __future__ import annotations

import inspect
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)

_ROOMS = ("jetstream_client.clients.", "jetstream_client.transport.")
"""Where the parts are."""


def with_one_name(cls: _Class) -> _Class:
    """Let the methods that the class has from its parts bear its name, as in
    `Client.purge_stream() got an unexpected keyword argument`. No other class may have them."""
    for base in cls.__mro__[1:]:
        if base.__module__.startswith(_ROOMS):
            for name, method in vars(base).items():
                if inspect.isfunction(method):
                    method.__qualname__ = f"{cls.__name__}.{name}"
    return cls
