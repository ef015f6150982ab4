"""Moves messages from NATS into the log, and acks back; `ingest` covers all streams of this
node."""
