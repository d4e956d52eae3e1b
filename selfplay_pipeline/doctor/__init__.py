"""Checks before anything is trained: of a model, a configuration and a machine (`doctor`), and of a game (`check-game`)."""
