"""What clients read and operate through: the data plane, gRPC and HTTP."""
