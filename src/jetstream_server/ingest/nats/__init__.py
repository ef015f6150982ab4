"""The NATS client of ingest: connection, parser, subscriptions, and our own nats-server."""
