"""The metadata state machine: commands in, changes out. Pure, and the same on every node."""
