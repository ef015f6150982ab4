"""The metadata state machine: commands in, changes out. Pure: the same on every node."""
