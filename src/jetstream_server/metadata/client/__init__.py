"""The metadata group as the rest of the server sees it: read the state, propose commands."""
