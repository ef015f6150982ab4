"""Test suites of other projects, run against this server."""
