"""What a node tells Prometheus."""
