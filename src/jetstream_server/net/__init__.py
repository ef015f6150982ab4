"""Sockets that carry frames, for data plane and replication: accept, authenticate, read, write."""
