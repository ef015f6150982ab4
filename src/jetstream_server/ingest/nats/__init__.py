"""The NATS client of ingest: connection, parser, subscriptions, and a nats-server of our own."""
