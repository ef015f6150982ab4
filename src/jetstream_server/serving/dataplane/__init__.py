"""The data plane: fetches in, batches out, straight from the segment files."""
