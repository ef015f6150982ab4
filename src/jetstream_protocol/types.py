"""Distinct types for numbers that must not be mixed up, and the clock's unit."""

from typing import NewType

Offset = NewType("Offset", int)
"""Position of a record in a stream, from 0, 64 bits."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Grows with every leadership of a stream; never resumed, not even by the same node."""

NodeId = NewType("NodeId", int)
StreamId = NewType("StreamId", int)
"""The metadata revision of a stream's creation; never reused."""

TimestampUs = NewType("TimestampUs", int)
"""Microseconds since the Unix epoch, UTC."""

NO_EPOCH = LeaderEpoch(-1)
NO_NODE = NodeId(-1)
