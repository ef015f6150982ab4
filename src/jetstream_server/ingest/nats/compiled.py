"""Whether the compiled form of the hot path is used, or its twin in plain Python.

The extension is missing where no C compiler was at hand when the package was built. It refuses to
be imported where JETSTREAM_PURE=1 is set. Both forms give the same results, byte for byte.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

compiled: ModuleType | None
"""The extension; None: plain Python."""
why_pure = ""
"""Why it is None; "" when it is not."""

try:
    from jetstream_server.ingest.nats import _columns
except ImportError as error:
    compiled, why_pure = None, str(error)
else:
    compiled = _columns

INGEST_FORM: Final = "python" if compiled is None else "compiled"
"""Its name in metrics and in the log."""
