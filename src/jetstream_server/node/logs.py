"""Structured logs on standard error: JSON lines, or coloured text on a terminal.

A line that cannot be shown or written is lost and counted; whoever logs it hears nothing of that.
output.py does the same for what is written past structlog.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections import deque
from typing import Any

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from jetstream_server.node.output import LOST

RECENT_LINES_MAX = 1000
RECENT_LINE_LENGTH_MAX = 4000


class _OursToFix(logging.Filter):
    """Drops errors that libraries log with a traceback although a client caused them: invalid HTTP,
    bodies that do not match their header, paths and metadata that are not UTF-8, and callers that
    left before the answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.name == "aiohttp.server":
            sent = isinstance(error, HttpProcessingError | RequestPayloadError | ConnectionError)
            return not sent and not _is_expectation(error)
        if record.name.startswith("grpc."):
            caller_left = type(error).__name__ == "ExecuteBatchError"  # From a private module.
            # As a message it is the reason why the server ended. Its replacement is logged.
            shown = isinstance(error, UnicodeDecodeError) or isinstance(
                record.msg, UnicodeDecodeError
            )
            return not (caller_left or shown)
        return True


def _is_expectation(error: BaseException | None) -> bool:
    """Whether aiohttp failed to quote the header `Expect` of a request for a path that is not ours:
    it is asked before our code."""
    if not isinstance(error, UnicodeEncodeError):
        return False
    return any(
        frame.f_code.co_name == "_default_expect_handler"
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


class _NamedLogger(structlog.PrintLogger):
    """Keeps the name given to `structlog.get_logger`, for `add_logger_name`."""

    def __init__(self, name: str) -> None:
        super().__init__(sys.stderr)
        self.name = name


def _never_raising(number: int) -> type[structlog.typing.BindableLogger]:
    """The class of loggers for lines from that level on."""

    class NeverRaising(structlog.make_filtering_bound_logger(number)):  # type: ignore[misc]
        def _proxy_to_logger(self, *arguments: Any, **values: Any) -> Any:
            try:
                return super()._proxy_to_logger(*arguments, **values)
            except Exception:  # noqa: BLE001  counted: no work fails for a line about it
                LOST.count += 1

    return NeverRaising


class RecentLog:
    """The last lines of this process's log, as JSON, for `jetstream debug bundle`. A structlog
    processor that changes nothing; it comes after the renderer of JSON."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=RECENT_LINES_MAX)

    def __call__(self, logger: Any, method: str, line: Any) -> Any:
        self._lines.append(line[:RECENT_LINE_LENGTH_MAX])
        return line

    def lines(self) -> list[str]:
        """The lines, the oldest first."""
        return list(self._lines)


RECENT = RecentLog()
"""One for the process, because logging is the process's too."""

_AS_JSON: tuple[structlog.types.Processor, ...] = (
    structlog.processors.format_exc_info,
    structlog.processors.JSONRenderer(),
    RECENT,
)


def _keep_as_json(
    logger: Any, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """A processor for a terminal, which is shown coloured text instead."""
    rendered: Any = dict(event)
    for processor in _AS_JSON:
        rendered = processor(logger, method, rendered)
    return event


LEVELS = ("debug", "info", "warning", "error")


def configure(level: str) -> bool:
    """Set logging up for the process. Returns False when `level` is not one of LEVELS."""
    if level.lower() not in LEVELS:
        return False
    number = logging.getLevelNamesMapping()[level.upper()]
    on_terminal = sys.stderr.isatty()
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: tuple[structlog.types.Processor, ...] = (
        (_keep_as_json, structlog.dev.ConsoleRenderer()) if on_terminal else _AS_JSON
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=_never_raising(number),
        logger_factory=_NamedLogger,
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module. Their warnings belong in the same stream.
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_OursToFix())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    return True
