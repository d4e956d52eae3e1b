"""Checks before anything is trained: `doctor` looks at model, configuration and machine, `check-game` at a game."""
