"""Distinct types for numbers that must not be mixed up.

A time is the reading of one of three clocks, in microseconds. Times of different clocks cannot be
compared, so each clock has its type. A duration is a plain int, and so is the result of arithmetic:
a computed time is given its type again, `MonotonicUs(now_us + PAUSE_US)`.
"""

from typing import NewType

LeaderEpoch = NewType("LeaderEpoch", int)
"""Grows with every leadership of a stream; never resumed, not even by the same node."""

NodeId = NewType("NodeId", int)
StreamId = NewType("StreamId", int)
"""The metadata revision of a stream's creation; never reused."""

WallUs = NewType("WallUs", int)
"""The time of day, since the Unix epoch, UTC: record timestamps, and times kept in files. It may
be set forward and back, and may differ by hours between nodes."""

MonotonicUs = NewType("MonotonicUs", int)
"""Time since some moment of this boot of the machine, to measure durations. It is never set. It
stands still while the machine is suspended, and means nothing on another machine."""

BootUs = NewType("BootUs", int)
"""Like MonotonicUs, but it goes on while the machine is suspended: for leases."""

NO_EPOCH = LeaderEpoch(-1)
NO_NODE = NodeId(-1)
NODE_ID_MAX = NodeId(2**31 - 1)
