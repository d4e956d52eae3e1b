"""Evaluation of checkpoints on held-out states, with any partner."""
