"""Schemas of streams: what the values are, for typed columns."""

from __future__ import annotations

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.streams import Streams
from jetstream_client.values.checks import check_text
from jetstream_client.values.record_types import record_type
from jetstream_client.values.types import StreamLike, StreamSchema
from jetstream_protocol.generated import api_pb2 as pb


class AsyncSchemas(AsyncMethods):
    """A part of `AsyncClient`, which sets this."""

    _streams: Streams

    async def describe_schema(self, stream: StreamLike) -> StreamSchema:
        """The schema of a stream's values, with its earlier versions. Raises
        StreamNotFoundError."""
        answer: pb.DescribeSchemaResponse = await self._calls.call(
            pb.DescribeSchemaRequest(stream=wire.to_ref(stream)), what="looking for the schema"
        )
        return StreamSchema(answer.schema_version, tuple(answer.schemas))

    async def set_schema(
        self, stream: StreamLike, schema: str | type, *, version: int | None = None
    ) -> StreamSchema:
        """Set the schema of a stream's values: `"id bigint, price double"` (docs/typed_streams.md),
        or that of a class: a dataclass, a pydantic model, a msgspec struct; "" takes it away.
        Publishers and records are not touched: a record that does not fit has nulls in its typed
        columns. Returns the schema as it is then.

        version: the version that it replaces; otherwise the one that it is at. Raises
        PreconditionFailedError if somebody has set another one meanwhile, InvalidRequestError for a
        change that programs which use the last version may not survive.
        """
        if isinstance(schema, type):
            schema = record_type(schema).schema
        check_text("the schema", schema)
        found = await self._streams.by_id(stream)
        if version is None:
            version = (await self.describe_schema(found)).version
        request = pb.SetSchemaRequest(
            stream=wire.to_ref(found), schema=schema, schema_version=version
        )
        await self._calls.call(
            request, what=f"setting the schema of {found.full_name!r}", changes=True
        )
        return await self.describe_schema(found)
