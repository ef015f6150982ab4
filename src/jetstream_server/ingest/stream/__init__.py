"""The ingest of one led stream: which messages are admitted, appended, and acknowledged."""
