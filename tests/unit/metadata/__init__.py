"""Tests of src/jetstream_server/metadata."""
