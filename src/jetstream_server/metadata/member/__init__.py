"""One member of the metadata group: a thread that drives Raft, the state and node sessions."""
