"""Measures how well a checkpoint plays on held-out states, with any partner. Reads checkpoints and episodes."""
