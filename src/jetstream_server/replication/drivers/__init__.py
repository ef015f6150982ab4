"""What acts on replicas, on the event loop: fetches, ISR changes, retention, compaction, repair."""
