"""From NATS into the log, and the acks' way back: `ingest` for all streams of this node."""
