"""Connections to the cluster: gRPC calls, the data plane, NATS, which server to use. Internal."""
