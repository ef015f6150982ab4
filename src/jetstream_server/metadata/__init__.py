"""The state that the cluster agrees on, streams, nodes and leaders, in one Raft group.

`state` decides, `raft` replicates, `member` runs both on a thread, and the rest of the server uses
`client`.
"""
