"""Key compaction of one log: the rules, a pass over its segments, and the process that runs it."""
