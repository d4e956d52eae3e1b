"""Rules of the games: pure, seeded, without torch. One file a game; `registry.py` names them."""
