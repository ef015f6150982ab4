"""The logger of the SDK, `jetstream_client`: silent unless the program sets logging up.

    logging.basicConfig(level=logging.INFO)

INFO: connections made and found again, leaders that have moved. WARNING: connections lost, calls
that are refused or not answered and are tried again. DEBUG: each attempt. Never a value, key or
secret. A handler or filter of the program that raises does not disturb the SDK: its line is lost.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any


class _Unfailing(logging.LoggerAdapter[logging.Logger]):
    """Logs like the logger that it wraps, and never raises."""

    def log(self, level: int, msg: object, *args: object, **values: Any) -> None:
        values["stacklevel"] = values.get("stacklevel", 1) + 1  # The caller is not in this file.
        with suppress(Exception):
            super().log(level, msg, *args, **values)


logger = _Unfailing(logging.getLogger("jetstream_client"))
logger.logger.addHandler(logging.NullHandler())
