"""The JSON of `/v1/` as schemas. A test compares answers with them."""

from __future__ import annotations

from jetstream_protocol.errors import CODES
from jetstream_protocol.settings import CLUSTER_SETTINGS, STREAM_SETTINGS, Kind, Setting
from jetstream_server.serving.http.operations import Schema

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
TIME: Schema = {"type": "string", "format": "date-time"}
INTEGER: Schema = {"type": "integer"}


def whole(least: int = 0, most: int | None = None) -> Schema:
    """A whole number."""
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def nullable(schema: Schema, meaning: str = "") -> Schema:
    """meaning: "": the name says it."""
    either = {**schema, "type": [schema["type"], "null"]}
    return {**either, "description": meaning} if meaning else either


def described(schema: Schema, meaning: str) -> Schema:
    """With a description."""
    return {**schema, "description": meaning}


def fields(properties: dict[str, Schema], meaning: str = "") -> Schema:
    """An object that has all of these."""
    about = {"description": meaning} if meaning else {}
    return {"type": "object", **about, "properties": properties, "required": list(properties)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_KINDS: dict[Kind, Schema] = {
    Kind.COUNT: whole(),
    Kind.BYTES: described(whole(), "Bytes."),
    Kind.DURATION: described({"type": "number", "minimum": 0}, "Seconds."),
    Kind.FLAG: FLAG,
    Kind.TEXT: TEXT,
}


def _setting(setting: Setting) -> Schema:
    if setting.kind is Kind.CHOICE:
        return {"type": "string", "enum": list(setting.choices)}
    return _KINDS[setting.kind]


_NODES = array(INTEGER)
_STREAM = fields(
    {
        "id": described(whole(), "Never used again, also not by a stream of the same name."),
        "name": TEXT,
        "subject": TEXT,
        "group": TEXT,
        "partition": nullable(INTEGER),
        "partitions": INTEGER,
        "replication_factor": INTEGER,
        **{
            each.name: _setting(each)
            for each in STREAM_SETTINGS
            if each.name not in ("replicas", "observers")
        },
        "replicas": described(_NODES, "Nodes that hold a copy that counts."),
        "leader": described(INTEGER, "-1: there is none."),
        "leader_epoch": INTEGER,
        "stream_epoch": INTEGER,
        "isr": described(_NODES, "Replicas in sync."),
        "elr": _NODES,
        "created_at": TIME,
        "lossy_elections": INTEGER,
        "readonly": FLAG,
        "paused": FLAG,
        "target_replicas": _NODES,
        "observers": _NODES,
        "lake_start_offset": described(INTEGER, "The first offset in the lake."),
        "lake_end_offset": described(INTEGER, "Records below it are in the lake; 0: none yet."),
        "log_start_offset": nullable(INTEGER, "The first offset that is kept."),
        "high_watermark": nullable(INTEGER, "Records below it are committed, and can be read."),
        "log_end_offset": nullable(INTEGER),
        "flushed_offset": nullable(INTEGER),
        "size_bytes": nullable(INTEGER),
        "segments": nullable(INTEGER),
        "state": described(TEXT, '"online", or why not.'),
        "records_appended": nullable(INTEGER, "Since the leader's process started."),
        "acks_sent": nullable(INTEGER),
        "nacks_sent": nullable(INTEGER),
        "acks_suppressed": nullable(INTEGER),
        "suspected_gaps": nullable(INTEGER),
        "hand_overs": nullable(INTEGER),
        "hand_over_gap": nullable(NUMBER),
        "progress": array(fields({"node": INTEGER, "offset": INTEGER, "lag": nullable(INTEGER)})),
        "compaction": nullable({"type": "object"}),
        "damaged": array(fields({"node": INTEGER, "start": INTEGER, "end": INTEGER})),
        "last_append": nullable(TIME),
        "key_id": nullable(TEXT),
    },
    "A stream. What only its leader knows is null if the leader does not answer.",
)

_CURSOR = fields(
    {
        "name": TEXT,
        "stream": described(TEXT, "name@subject"),
        "stream_id": whole(),
        "offset": described(whole(), "The next record to read."),
        "last_epoch": described(INTEGER, "Leader epoch of the record before it; -1: not known."),
        "committed_at": TIME,
        "owner": TEXT,
        "metadata": TEXT,
        "revision": described(whole(), "Grows with every commit."),
        "stream_id_now": nullable(INTEGER, "null: the stream is deleted."),
        "creator": TEXT,
    },
    "The position of a reader.",
)

_CURSOR_DESCRIPTION = fields(
    {
        **_CURSOR["properties"],
        "state": {
            "type": "string",
            "enum": ["current", "truncated", "stream deleted", "stream re-created"],
        },
        "log_start_offset": nullable(INTEGER),
        "high_watermark": nullable(INTEGER),
        "lag": nullable(INTEGER, "Committed records that are not read yet."),
        "lag_seconds": nullable(NUMBER, "Since the first of them was appended."),
    },
    "The position of a reader, and how far it is behind; null: unknown.",
)

POSITION: Schema = {
    "type": "object",
    "description": "Where to set a cursor: either `offset` or `to`.",
    "properties": {
        "offset": described(whole(), "The next record to read, as it is."),
        "to": described(
            TEXT,
            "A place that the stream must hold: earliest, latest, an offset, -10 (the last ten), "
            "1h (ago) or a time like 2026-01-31T12:00:00Z",
        ),
        "last_epoch": described(INTEGER, "Leader epoch of the record before it."),
        "owner": described({"type": "string", "maxLength": 64}, "Who reads. Without: set by hand."),
        "metadata": described(TEXT, "At most 1,024 bytes, kept with it."),
        "expected_revision": described(
            INTEGER, "Only if the cursor has this revision; -1: only if there is none."
        ),
    },
    "additionalProperties": False,
}

_ENCODING = nullable({"type": "string"}, "`utf8`, or `base64` for other bytes.")
_HEADERS = described(
    {
        "type": "object",
        "additionalProperties": {"oneOf": [TEXT, array(TEXT)]},
    },
    "A header that is given more than once has a list.",
)
_SIZE = nullable(INTEGER, "Bytes before it was cut, if `bytes_max` is given.")
RECORD = fields(
    {
        "offset": whole(),
        "timestamp": TIME,
        "subject": TEXT,
        "key": nullable(TEXT),
        "key_encoding": _ENCODING,
        "value": nullable(TEXT, "null: a tombstone."),
        "value_encoding": _ENCODING,
        "headers": _HEADERS,
    }
)
_FIELDS = described(
    {"type": "object"},
    "With `typed`: by name, and `_error`, which says what does not fit. Integers beyond 2⁵³ and "
    "doubles that are not finite are text. Of a value of more than 64 KiB there are none. With "
    "`bytes_max` what is too long is the first part of its text, and ends in `…`.",
)
_NEW_RECORD = {**RECORD, "required": ["value"], "additionalProperties": False}
_CUT_RECORD = {
    **RECORD,
    "properties": {
        **RECORD["properties"], "key_size": _SIZE, "value_size": _SIZE, "headers_size": _SIZE,
        "fields": _FIELDS,
    },
}  # fmt: skip

SCHEMAS: dict[str, Schema] = {
    "Stream": _STREAM,
    "Streams": fields(
        {"streams": array(ref("Stream")), "total": described(whole(), "On all pages.")}
    ),
    "Cursor": _CURSOR,
    "CursorDescription": _CURSOR_DESCRIPTION,
    "Cursors": fields(
        {
            "cursors": array(ref("CursorDescription")),
            "total": described(whole(), "On all pages."),
            "is_all": described(FLAG, "false: there were too many to look at."),
        }
    ),
    "Position": POSITION,
    "Record": described(_CUT_RECORD, "A record: one line, or one event."),
    "NewRecord": described(
        _NEW_RECORD, "A record to store: one line. `offset` and `timestamp` are ignored."
    ),
    "Stored": fields(
        {
            "offset": described(whole(), "Of the first record."),
            "count": whole(),
            "duplicate": described(
                FLAG, "They were stored already, by a request with the same key."
            ),
        }
    ),
    "Cluster": fields(
        {
            "cluster_id": TEXT,
            "controller": described(INTEGER, "-1: there is none."),
            "nodes": array(ref("Node")),
            "nats": array(TEXT),
            "server_version": TEXT,
            "answering_node": INTEGER,
            **{each.name: _setting(each) for each in CLUSTER_SETTINGS},
        }
    ),
    "Node": fields(
        {
            "id": whole(),
            "grpc": TEXT,
            "data": TEXT,
            "http": TEXT,
            "rack": TEXT,
            "incarnation": whole(),
            "fenced": FLAG,
            "draining": FLAG,
            "not_ready": described(array(TEXT), "Why it should not be relied on."),
            "voter": nullable(FLAG),
            "disk_full": described(FLAG, "Nothing new is placed there."),
        }
    ),
    "Error": fields(
        {
            "error": fields(
                {
                    "code": {
                        "type": "string",
                        "enum": sorted({each.code for each in CODES.values()}),
                    },
                    "message": TEXT,
                }
            )
        }
    ),
}
