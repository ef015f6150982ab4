"""Readers' positions and consumer groups, kept in the internal stream `__cursors` by the node that
leads it."""
