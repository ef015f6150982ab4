"""Structured logs on standard error: JSON lines, or coloured text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError


class _OursToFix(logging.Filter):
    """Drops what libraries report as errors, with a traceback, although it is only what a stranger
    sent: bytes that are no HTTP, bodies that are not what their header says, paths and metadata
    that are no UTF-8, calls and requests whose sender has left before the answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.name == "aiohttp.server":
            return not isinstance(
                error, HttpProcessingError | RequestPayloadError | ConnectionError
            )
        if record.name.startswith("grpc."):
            caller_left = type(error).__name__ == "ExecuteBatchError"  # Of a private module.
            # As message it is why the server ended: whoever replaces it says so.
            told = isinstance(error, UnicodeDecodeError) or isinstance(
                record.msg, UnicodeDecodeError
            )
            return not (caller_left or told)
        return True


class _NamedLogger(structlog.PrintLogger):
    """Keeps the name given to `structlog.get_logger`, for `add_logger_name`."""

    def __init__(self, name: str) -> None:
        super().__init__(sys.stderr)
        self.name = name


LEVELS = ("debug", "info", "warning", "error")


def configure(level: str) -> bool:
    """Set logging up for the process; False when `level` is none of LEVELS."""
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
    renderers: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if on_terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_NamedLogger,
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module; what they warn of belongs into the same stream.
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
