"""The logger of the SDK, `jetstream_client`: silent unless the program sets logging up.

    logging.basicConfig(level=logging.INFO)

INFO: connections made and found again, leaders that have moved. WARNING: connections lost, calls
that are refused or not answered and are tried again. DEBUG: each attempt. Never a value, key or
secret.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("jetstream_client")
logger.addHandler(logging.NullHandler())
