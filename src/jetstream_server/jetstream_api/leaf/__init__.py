"""The leaf link: how this node answers NATS clients beside the connection of ingest."""
