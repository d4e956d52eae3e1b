"""PettingZoo's AEC environments with text: as games, and games as such environments."""
