"""The data plane: fetches in, batches out, directly from the segment files."""
