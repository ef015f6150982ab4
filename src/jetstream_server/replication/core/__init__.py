"""What decides about one replica: leader, follower, ISR, elections. Pure: time is passed in."""
