"""The lake: old records of streams in an object store. docs/adr/0044-lake.md has the rules."""
