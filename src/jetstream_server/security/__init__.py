"""Callers and their rights: principals, tokens, ACL rules, and the one place that decides."""
