"""HTTP: health, readiness, metrics, the console and its API."""
