"""Certificates to try TLS with: `scripts/make-certs`."""
