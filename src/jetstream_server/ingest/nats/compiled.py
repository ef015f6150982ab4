"""Chooses between the compiled form of the hot path and its twin in plain Python.

The extension is missing if there was no C compiler when the package was built. It refuses to be
imported if JETSTREAM_PURE=1 is set. Both forms give the same results, byte for byte.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

compiled: ModuleType | None
"""The extension; None: plain Python."""
why_pure = ""
"""Why there is no extension; "" if there is one."""

try:
    from jetstream_server.ingest.nats import _columns
except ImportError as error:
    compiled, why_pure = None, str(error)
else:
    compiled = _columns

INGEST_FORM: Final = "python" if compiled is None else "compiled"
"""The name of the form in metrics and in the log."""
