"""What programs give to a client and get from it: configuration, positions, headers, records,
settings, and what calls return. Imports no other room. Internal."""
