"""The sessions of nodes with the controller: leases, heartbeats, fencing."""
