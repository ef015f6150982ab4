"""Handlers called for records, several at a time: `client.process(…)`. schedule.py decides which
record may start and what is done; processor.py acts."""
