"""Whether the compiled form of the hot path is used, or its twin in plain Python.

The extension is missing where no C compiler was at hand when the package was built.
JETSTREAM_PURE=1 leaves it out although it is there. Both forms give the same results, byte for
byte.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Final

compiled: ModuleType | None
"""The extension; None: plain Python."""
why_pure = ""
"""Why it is None; "" when it is not."""

if os.environ.get("JETSTREAM_PURE", "") not in ("", "0"):
    compiled, why_pure = None, "JETSTREAM_PURE is set"
else:
    try:
        from jetstream_server.ingest import _columns

        compiled = _columns
    except ImportError as error:
        compiled, why_pure = None, f"the extension is missing: {error}"

INGEST_FORM: Final = "python" if compiled is None else "compiled"
"""As it is called in metrics and in the log."""
