"""What the cluster agrees on: streams, nodes, leaders, in one Raft group.

`state` decides, `raft` replicates, `member` runs both on a thread, `client` is what the rest of the
server uses.
"""
