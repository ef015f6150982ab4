"""Replicas of streams on this node: led or followed, kept in sync, kept within limits.

`core` decides, `sessions` says which node may lead, `drivers` act, `replica_manager` holds all
replicas.
"""
