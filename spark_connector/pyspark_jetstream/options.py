"""The options of a read or a write. All are checked before anything is done.

Spark passes them as text, under names in any case. Unknown options are refused, because a misspelt
`failOnDataLoss` must not silently mean the default. Names and meanings follow Spark's Kafka source
where it has the same option. Options are pickled into tasks. Except `token` they hold no secrets,
only paths of files with secrets; no error and no `repr` shows a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Literal, TypeVar, cast, get_args

from jetstream_client import ClientConfig, InvalidRequestError, NatsOptions, TlsConfig
from jetstream_client.values.types import Via
from jetstream_protocol.cursor_names import is_cursor_name
from jetstream_protocol.subjects import check_literal, check_pattern
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.positions import (
    Positions,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)
from pyspark_jetstream.transactions import Transaction

_T = TypeVar("_T")

TIMEOUT_SECONDS = 30.0
"""Timeout of one call, retries included: several times as long as the election of a new leader."""

RECORDS_PER_TASK = 1_000_000
"""A task of this size takes about a second: long compared with its start, short to repeat."""

MAX_TRIGGER_DELAY_SECONDS = 15 * 60.0
"""The value of Spark's Kafka source."""

NAMES_OF_COLUMNS = ("stream", "subject", "offset", "timestamp", "key", "value")
"""In the SDK's order. `headers` follow if they are wanted."""

_COMMON = ("servers", "timeout")
_SIGN_IN = ("tls", "tlsCa", "tlsCertificate", "tlsKey", "token", "tokenFile")
_SELECTION = ("streams", "streamPattern", "subject")
_READ = (
    *_COMMON, *_SELECTION, "includeHeaders", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "readFrom", "columns", "typed", *_SIGN_IN,
)  # fmt: skip
_BATCH = (*_READ, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "refresh")
_STREAM = (*_READ, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "cursor")
_NATS_SIGN_IN = (
    "natsCredentials", "natsNkeySeed", "natsTls", "natsTlsCa", "natsTlsCertificate", "natsTlsKey",
)  # fmt: skip
_NATS = ("nats", *_NATS_SIGN_IN)
_WRITE = (*_COMMON, "via", *_NATS, "subject", "txnAppId", "txnVersion", *_SIGN_IN)
ReadFrom = Literal["any", "leader", "nearest"]
"""Which in-sync replica is read from."""

_READ_FROM: Mapping[str, ReadFrom] = {"any": "any", "leader": "leader", "nearest": "nearest"}
_INSTEAD: Mapping[str, str] = {
    "subscribe": "streams",
    "assign": "streams",
    "subscribepattern": "streamPattern",
    "kafka.bootstrap.servers": "servers",
    "topic": "subject",
    "paths": "streams, a list with commas,",
    "pushdownfilters": "startingOffsets, startingTimestamp or subject",
}
"""Names used by Spark's Kafka source, `load([...])` or an older version."""

_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark adds by itself."""

Mode = Literal["read", "batch", "stream", "write"]
"""A read is known to be a batch or a stream only after Spark has asked for its schema."""

NAMES: Mapping[Mode, tuple[str, ...]] = {
    "read": (*_BATCH, *_STREAM[len(_READ) :]),
    "batch": _BATCH,
    "stream": _STREAM,
    "write": _WRITE,
}
_WORDS: Mapping[Mode, str] = {
    "read": "read",
    "batch": "batch read",
    "stream": "streaming read",
    "write": "write",
}


@dataclass(frozen=True)
class Selection:
    """The selected streams: by name (or name@subject), by a pattern of names, or by subject alone.

    subjects: NATS patterns; only records on matching subjects are read. Empty: all.
    """

    names: tuple[str, ...]
    pattern: str
    subjects: tuple[str, ...]


@dataclass(frozen=True)
class ReadOptions:
    """Options of batch and streaming reads. cursor: shows a streaming query's progress; "": none
    does. refresh: a batch read that is used again also has the records appended since. typed: also
    the fields of the streams' schema. names_columns: `columns` is given; fields: those that it
    names and not every stream has."""

    config: ClientConfig
    selection: Selection
    starting: Positions
    ending: Positions
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int
    read_from: ReadFrom
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay: float
    cursor: str = ""
    refresh: bool = False
    typed: bool = False
    names_columns: bool = False
    fields: tuple[str, ...] = ()

    @property
    def servers(self) -> str:
        return ",".join(self.config.servers)


@dataclass(frozen=True)
class WriteOptions:
    """subject: of rows without a column `subject`; "" if none was given.

    transaction: names the write, so that a second write of that name stores nothing twice; None:
    the write cannot be recognised later. via: which way the batches go, as in `client.publisher`.
    """

    config: ClientConfig
    subject: str
    transaction: Transaction | None = None
    via: Via = "nats"

    @property
    def servers(self) -> str:
        return ",".join(self.config.servers)


class _Given:
    """The options as the user wrote them. Every method raises OptionError."""

    def __init__(self, options: Mapping[str, str], mode: Mode) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in NAMES[mode]}
        elsewhere = {name.lower() for names in NAMES.values() for name in names}
        for name in sorted(self._values.keys() - known.keys() - _SPARKS_OWN):
            if name in elsewhere:
                raise OptionError(
                    f"option {name!r} means nothing to a {_WORDS[mode]}: leave it out"
                )
            raise OptionError(f"unknown option {name!r}: {_hint(name, known)}")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def items(self, name: str) -> tuple[str, ...]:
        """The parts of a list; `\\,` is a comma within one."""
        parts = re.split(r"(?<!\\),", self.text(name))
        return tuple(part.strip().replace("\\,", ",") for part in parts if part.strip())

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise OptionError(f"{name} {text!r} is neither true nor false: say one of them")
        return text == "true"

    def read_from(self) -> ReadFrom:
        text = self.text("readFrom", "any").lower()
        if text not in _READ_FROM:
            raise OptionError(f"readFrom {text!r} is no choice: say any, leader or nearest")
        return _READ_FROM[text]

    def via(self) -> Via:
        text = self.text("via", "nats").lower()
        for way in get_args(Via):
            if text == way:
                return cast(Via, way)
        raise OptionError(f"via {text!r} is no choice: say nats, direct or auto")

    def number(self, name: str, default: int) -> int:
        """A positive number; the default if it is not given."""
        text = self.text(name, str(default))
        if not text.isdecimal() or (int(text) == 0 and default != 0):
            raise OptionError(f"{name} {text!r} is not a positive number: say one from 1 on")
        return int(text)

    def config(self, nats_options: NatsOptions | None = None) -> ClientConfig:
        config = self.checked(
            "servers, timeout, tls, token",
            lambda: ClientConfig.of(
                self.text("servers") or None,
                self.text("nats") or None,
                nats_options,
                self.seconds("timeout", TIMEOUT_SECONDS),
                token=self.text("token") or None,
                token_file=self.text("tokenFile") or None,
                tls=self._tls(),
            ),
        )
        # Each task makes its own clients, which must wait for a server that restarts.
        return replace(config, retry_on_failed_connect=True)

    def _tls(self) -> bool | TlsConfig | None:
        """The TLS configuration; None: as the environment says."""
        ca, cert, key = (self.text(name) or None for name in ("tlsCa", "tlsCertificate", "tlsKey"))
        if ca or cert or key:
            return TlsConfig(ca, cert, key)
        return self.flag("tls", False) if self.text("tls") else None

    def seconds(self, name: str, default: float) -> float:
        """A duration in seconds: `30`, `500ms`, `10s`, `15m`, `1h`."""
        text = self.text(name, f"{default}s").lower()
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text)
        if match is None or float(match[1]) == 0:
            raise OptionError(f"{name} {text!r} is no duration: say for example 30s, 15m or 1h")
        return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}[match[2]]

    @staticmethod
    def checked(what: str, make: Callable[[], _T]) -> _T:
        try:
            return make()
        except OptionError:
            raise
        except InvalidRequestError as error:
            raise OptionError(f"{what}: {error}") from error


def _hint(name: str, known: Mapping[str, str]) -> str:
    """A hint for an unknown option. known: names by lower-case name."""
    if name in _INSTEAD:
        return f"say {_INSTEAD[name]} instead"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that `CREATE TABLE` makes."""
    return "provider" in options


def check_table(options: Mapping[str, str]) -> None:
    """Raise OptionError for a table with options: Spark would drop them when it is read."""
    given = sorted(name for name in options if name.lower().startswith("option."))
    if given:
        raise OptionError(
            "Spark forgets the OPTIONS of a table: CREATE TABLE streams USING jetstream, and give "
            "them where it is read: SELECT * FROM streams WITH (streams = 'orders')"
        )


def read_options(
    options: Mapping[str, str], mode: Literal["read", "batch", "stream"]
) -> ReadOptions:
    """The checked options of a read. Raises OptionError."""
    given = _Given(options, mode)
    starting = _bound(given, "starting", "latest" if mode == "stream" else "earliest", "earliest")
    ending = _bound(given, "ending", "latest", "latest")
    if mode == "batch":
        _refuse(starting, "latest", "where nothing is yet: say earliest, offsets or a time")
        _refuse(ending, "earliest", "before the first record: say latest, offsets or a time")
    return ReadOptions(
        config=given.config(),
        selection=_selection(given),
        starting=starting,
        ending=ending,
        columns=_columns(given)[0],
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        min_partitions=given.number("minPartitions", 0),
        max_records_per_partition=given.number("maxRecordsPerPartition", RECORDS_PER_TASK),
        read_from=given.read_from(),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger", 0),
        min_offsets_per_trigger=given.number("minOffsetsPerTrigger", 0),
        max_trigger_delay=given.seconds("maxTriggerDelay", MAX_TRIGGER_DELAY_SECONDS),
        cursor=_cursor(given),
        refresh=_refresh(given, ending),
        typed=given.flag("typed", False),
        names_columns=bool(given.items("columns")),
        fields=_columns(given)[1],
    )


def _refresh(given: _Given, ending: Positions) -> bool:
    wanted = given.flag("refresh", False)
    if wanted and (ending.default != "latest" or ending.by_stream):
        raise OptionError(
            f"refresh reads up to what is committed at each query, and {ending.option} says where "
            "to end: leave one of them out"
        )
    return wanted


def _cursor(given: _Given) -> str:
    name = given.text("cursor")
    if name and not is_cursor_name(name):
        raise OptionError(
            f"cursor {name!r} is no name: use 1 to 255 letters, digits, '_', '-' and '.'"
        )
    return name


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The checked options of a write. Raises OptionError."""
    given = _Given(options, "write")
    subject = given.text("subject")
    if subject:
        check_subject("option subject", subject)
    via = given.via()
    for name in _NATS:
        if via == "direct" and given.text(name):
            raise OptionError(f"{name} means nothing with via=direct, without NATS: leave it out")
    config = given.config(_nats_options(given))
    return WriteOptions(config, subject, _transaction(given, subject), via)


def _nats_options(given: _Given) -> NatsOptions | None:
    """None: as the environment of the driver says."""
    if not any(given.text(name) for name in _NATS_SIGN_IN):
        return None
    return NatsOptions(
        credentials=given.text("natsCredentials") or None,
        nkey_seed=given.text("natsNkeySeed") or None,
        tls=given.flag("natsTls", False),
        tls_ca=given.text("natsTlsCa") or None,
        tls_certificate=given.text("natsTlsCertificate") or None,
        tls_key=given.text("natsTlsKey") or None,
    )


def _transaction(given: _Given, subject: str) -> Transaction | None:
    """The name of the write, as in Delta: an application, and a number that grows with each
    write."""
    application, version = given.text("txnAppId"), given.text("txnVersion")
    if not application and not version:
        return None
    if not application or not version.isdecimal():
        raise OptionError(
            "txnAppId and txnVersion belong together: a name, the same for every run of the "
            "program, and a number, another one for each write, such as foreachBatch's batch id"
        )
    return Transaction(application, int(version), subject)


def check_subject(what: str, subject: str) -> None:
    """Raise OptionError unless publishers can use this subject."""
    try:
        check_literal(subject)
    except InvalidRequestError as error:
        raise OptionError(f"{what}: {error}; name one subject, such as orders.eu") from error


def _selection(given: _Given) -> Selection:
    # Spark passes load("orders") as the option path.
    if given.text("streams") and given.text("path"):
        raise OptionError(
            f"both option streams and load({given.text('path')!r}) name streams: keep one of them"
        )
    names = given.items("streams") or given.items("path")
    pattern = given.text("streamPattern")
    subjects = given.items("subject")
    if names and pattern:
        raise OptionError("both streams and streamPattern are given: keep one of them")
    if not (names or pattern or subjects):
        raise OptionError(
            "which streams? add option streams, for example 'orders' or 'orders,clicks@clicks.>', "
            "or streamPattern, or subject; in SQL: SELECT * FROM table WITH (streams = 'orders')"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(
            f"streamPattern {pattern!r} is no regular expression ({error}): mend it, for example "
            "orders_.*"
        ) from error
    for subject in subjects:
        given.checked("subject", partial(check_pattern, subject))
    return Selection(names, pattern, subjects)


def _bound(
    given: _Given, which: str, default: str, unnamed: Literal["earliest", "latest"]
) -> Positions:
    """One of the options …Offsets, …Timestamp, …OffsetsByTimestamp, of which only one may be
    given."""
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    by_stream = f"{which}OffsetsByTimestamp"
    named = [name for name in (offsets, timestamp, by_stream) if given.text(name)]
    if len(named) > 1:
        raise OptionError(f"both {' and '.join(named)} are given: keep one of them")
    if given.text(timestamp):
        return parse_timestamp(timestamp, given.text(timestamp))
    if given.text(by_stream):
        return parse_timestamps(by_stream, given.text(by_stream), unnamed)
    return parse_offsets(offsets, given.text(offsets, default), unnamed)


def _columns(given: _Given) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that every stream has, in the order of the schema, whatever order they were given
    in; and the others that are named, with `typed`."""
    everything = (
        (*NAMES_OF_COLUMNS, "headers")
        if given.flag("includeHeaders", False)
        else (NAMES_OF_COLUMNS)
    )
    wanted = given.items("columns")
    strangers = sorted(set(wanted) - set(everything))
    if strangers and not given.flag("typed", False):
        more = "; headers need includeHeaders=true" if "headers" in strangers else ""
        raise OptionError(
            f"columns names {', '.join(strangers)}: say some of {', '.join(everything)}{more}"
        )
    columns = tuple(name for name in everything if name in wanted or not wanted)
    return columns, tuple(name for name in wanted if name in strangers)


def _refuse(positions: Positions, place: str, because: str) -> None:
    if place in (positions.default, *positions.by_stream.values()):
        raise OptionError(f"{positions.option} of a batch read cannot be {place}, {because}")
