"""One led stream's ingest: what is admitted, appended, and acknowledged."""
