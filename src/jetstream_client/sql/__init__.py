"""SQL over streams, by DuckDB: `client.sql(…)` and `jetstream sql`. Needs the extra `sql`."""

from jetstream_protocol.errors import InvalidRequestError


class QueryError(InvalidRequestError):
    """DuckDB's words. They point into the query, so they keep their lines."""
