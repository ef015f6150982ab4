"""Programs that read, process and publish, each a process, under fire; see docs/chaos.md."""
