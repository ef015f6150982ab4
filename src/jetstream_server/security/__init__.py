"""Who asks, and what they may do: principals, tokens, ACL rules, and the one place that decides."""
