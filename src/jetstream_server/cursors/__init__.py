"""Readers' positions, kept in the internal stream `__cursors` by the node that leads it."""
