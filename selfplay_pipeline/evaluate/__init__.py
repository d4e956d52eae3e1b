"""How well a checkpoint plays: on held-out states, with any partner, with intervals. Reads checkpoints and episodes."""
