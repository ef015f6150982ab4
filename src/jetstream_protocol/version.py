"""The version of this software. It is read once: whoever runs is not what has been installed since,
and a process without a free file descriptor could not read it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("jetstream-log")
