"""The JetStream API of NATS clients, served on a domain of its own over leaf links to NATS."""
