"""The JetStream API of NATS clients, served on its own domain over leaf links to NATS."""
