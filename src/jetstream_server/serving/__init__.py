"""The interfaces for clients: the data plane, gRPC and HTTP."""
