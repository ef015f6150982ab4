"""Decides which schema a stream gets: its versions are kept, and each must go on from the last.

**safety** All nodes decide alike, whatever their version: what `parse` takes and what
`why_incompatible` finds may change only at another feature level.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_protocol.schema import parse, why_incompatible
from jetstream_server.metadata.state.commands import SetSchema
from jetstream_server.metadata.state.decision import Decision, decision_for, stream_of
from jetstream_server.metadata.state.tables import Tables

VERSIONS_MAX: Final = 10
"""So many versions of a schema are kept: they are in every snapshot of the metadata."""


def set_schema(tables: Tables, command: SetSchema) -> Decision:
    stream = stream_of(tables, command.stream_id)
    if stream.is_internal:
        raise InvalidRequestError(f"{stream.full_name} is the server's own stream")
    text = str(parse(command.schema)) if command.schema else ""
    if text == stream.schema:
        return Decision({"schema_version": stream.schema_version})
    if command.schema_version != stream.schema_version:
        raise PreconditionFailedError(
            f"the schema of {stream.full_name} is at version {stream.schema_version}, not "
            f"{command.schema_version}: somebody has changed it"
        )
    if stream.schema and text:
        why = why_incompatible(parse(stream.schema), parse(text))
        if why:
            raise InvalidRequestError(f"the schema of {stream.full_name} cannot change so: {why}")
    version = stream.schema_version + 1
    after = replace(
        stream,
        schemas=(*stream.schemas, text)[-VERSIONS_MAX:],
        schema_version=version,
        stream_epoch=stream.stream_epoch + 1,
    )
    return Decision({"schema_version": version}, decision_for(tables, stream, after).changes)
