"""Deal or No Deal: two players, each with values of its own, agree on who gets which of a few items."""
