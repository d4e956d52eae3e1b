"""Ours and TRL on the same games, side by side."""
