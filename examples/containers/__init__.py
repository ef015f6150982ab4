"""The container image and docker-compose.yml, built and run for real, as `scripts/containers`."""
