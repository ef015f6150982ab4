"""The streams of a run, and who works on which."""

from __future__ import annotations

INPUT = "input"
"""One stream, read by programs that each have a cursor."""
PARTS = "parts"
"""A keyed group that grows; consumer groups share its streams."""
PARTS_FIRST, PARTS_MAX = 3, 8
OUTPUT = "outputs"
"""What `process` makes of the records of the parts."""
LOOSE = "loose"
"""Streams that are created, purged and deleted meanwhile. Nobody else knows how many there are."""
WINDOW_SECONDS = 86_400
"""Outputs are recognised for longer than a run, and than any clock jumps."""

SESSION_SECONDS = 2.0
MEMBERS, TWINS, PROCESSORS = "members", "twins", "processors"
"""The consumer groups."""
CURSORS = ("cursor-a", "cursor-b")
INSTANCES = ("one", "two")
"""The names of the twins. Each process of a name takes the place of the one before."""
