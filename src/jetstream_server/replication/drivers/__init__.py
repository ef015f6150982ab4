"""The parts that act on replicas, on the event loop: fetch, ISR, retention, compaction, repair."""
