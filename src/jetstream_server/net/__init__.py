"""Sockets that carry frames, of data plane and replication: accept, authenticate, read, write."""
