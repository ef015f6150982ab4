"""The state of a run of the server: what ended it early, and why it is not ready."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from jetstream_server.background import FAILED_TASK

logger = structlog.get_logger("jetstream.server")


class StartError(Exception):
    """The node cannot start; the message is one line that says why."""


class CannotListenError(StartError):
    """It cannot listen on its own port, often because another process does."""


class RunState:
    """failed: the node cannot continue. folder_gone: its data folder is gone; `why_gone` says
    how. removed: the cluster has forgotten this node."""

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.folder_gone = asyncio.Event()
        self.removed = asyncio.Event()
        self.why_gone = ""
        self._reasons_not_ready = ["starting"]

    @property
    def reasons_not_ready(self) -> list[str]:
        """Why the node is not ready, apart from the reasons that its parts give."""
        return list(self._reasons_not_ready)

    @property
    def is_over(self) -> bool:
        return self.failed.is_set() or self.folder_gone.is_set() or self.removed.is_set()

    def started(self) -> None:
        self._reasons_not_ready.clear()

    def stopping(self) -> None:
        self._reasons_not_ready.append("stopping")

    def lose_folder(self, reason: str) -> None:
        """Stop: without its data folder a node hands over and stops. It does not continue as an
        empty node: the operator decides whether the folder comes back."""
        logger.error("data_folder_gone", reason=reason)
        self._reasons_not_ready.append(reason)
        self.why_gone = reason
        self.folder_gone.set()

    def lose_registration(self) -> None:
        """Stop: somebody has removed this node while it was not heard, for example frozen."""
        logger.error("node_removed")
        self._reasons_not_ready.append("this node was removed from the cluster")
        self.removed.set()

    def lose_metadata(self, reason: str) -> None:
        """Stop: without its metadata member a node cannot work."""
        logger.error("metadata_failed_stopping", reason=reason)
        self.failed.set()

    def loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error in a callback. If a background task has failed, stop the node."""
        logger.error(
            "internal_error", message=context["message"], exc_info=context.get("exception")
        )
        if FAILED_TASK in context:
            self.failed.set()
