"""Everything that may go wrong at once, drawn from a seed, and a checker that names what broke."""
