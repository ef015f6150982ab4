"""The decisions about one replica: leader, follower, ISR, elections. Pure: callers pass the
time."""
