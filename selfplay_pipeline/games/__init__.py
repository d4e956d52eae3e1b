"""Games: rules and everything else that depends on a game. Pure and seeded, without torch."""
