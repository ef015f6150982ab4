"""Publishers in other languages, with those languages' own NATS clients, through failovers."""
