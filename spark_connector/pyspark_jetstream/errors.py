"""Errors as the user of a DataFrame sees them: Spark shows the last line of Python's error.

So every message is one line and ends with advice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jetstream_client import (
    AmbiguousStreamError,
    CorruptBatchError,
    DivergedError,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    TooManyRequestsError,
    UnavailableError,
)

log = logging.getLogger("pyspark_jetstream")
"""Spark shows these log lines among those of driver and executors."""


class OptionError(InvalidRequestError):
    """An option with a wrong name or value."""


class DataLossError(JetstreamError):
    """Records that the query had to read are gone: deleted, expired, or of another history."""

    @property
    def code(self) -> str:
        return "data_loss"


START_ANEW = (
    "to go on without them set failOnDataLoss=false; to begin anew use a new checkpointLocation"
)
"""Advice for a streaming query whose records are gone."""

LOAD_ANEW = "to read what is left set failOnDataLoss=false; for what there is now load() again"
"""The same advice for a batch read."""


def advice(error: JetstreamError, servers: str) -> str:
    """What the user can do about `error`, as the end of a sentence; "" if the error says so
    itself."""
    if isinstance(error, NotEnoughReplicasError | TooManyRequestsError):
        return ""
    if isinstance(error, UnavailableError):
        return (
            f"if no node answered, check that option servers ({servers}) names nodes of the "
            "cluster, that they run, and that their gRPC and data ports (9292, 9293) can be "
            "reached from driver and executors"
        )
    if isinstance(error, CorruptBatchError):
        return (
            "the bytes on a node's disk or on the way are damaged: run `jetstream log verify` on "
            "the nodes, or read from another replica"
        )
    if isinstance(error, MessageTooLargeError):
        return (
            "publish shorter rows, or raise max_payload of the NATS server or max_message_bytes of "
            "the stream, whichever the error names; NATS's does not hold with via=direct"
        )
    if isinstance(error, AmbiguousStreamError):
        return "write it as name@subject in option streams"
    if isinstance(error, StreamNotFoundError):
        return "`jetstream stream list` shows the streams there are"
    if isinstance(error, OffsetOutOfRangeError):
        return (
            "retention removed the records or the offset never existed: choose an offset in that "
            "range, or set failOnDataLoss=false to read what is left"
        )
    if isinstance(error, DivergedError):
        return (
            "an unclean election or a restored disk replaced the records: read the stream anew, or "
            "set failOnDataLoss=false to go on with what is there now"
        )
    return ""


@contextmanager
def explained(servers: str) -> Iterator[None]:
    """Add advice to the SDK's errors. The connector's own errors have it already."""
    try:
        yield
    except (OptionError, DataLossError):
        raise
    except JetstreamError as error:
        what_to_do = advice(error, servers)
        if not what_to_do:
            raise
        raise type(error)(f"{one_line(error)}; {what_to_do}") from error


@contextmanager
def naming(names: Mapping[int, str]) -> Iterator[None]:
    """Streams are asked for by id; errors say their names instead."""

    def name(found: re.Match[str]) -> str:
        known = names.get(int(found[1]))
        return found[0] if known is None else f"stream {known!r}"

    try:
        yield
    except JetstreamError as error:
        error.message = re.sub(r"\bstream '?(\d+)'?(?![\w@'])", name, error.message)
        error.args = (error.message, *error.args[1:])
        raise


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
