"""Raft around pysyncobj: its journal, snapshots, messages, and the links between members."""
