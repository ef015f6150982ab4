"""The gRPC API: services, the checks around every call, and gRPC's own loop."""
