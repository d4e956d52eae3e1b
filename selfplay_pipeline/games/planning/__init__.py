"""Planning, a game of DialOp: an agent that knows a city plans a day of three places for a user who has wishes."""
