"""The same requests to a nats-server with JetStream and to us, and what may differ."""
