"""Checks before anything is trained: `doctor` looks at model, configuration and machine, `game check` at a game."""
