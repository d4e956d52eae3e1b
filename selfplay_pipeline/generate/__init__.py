"""Batched self-play: a game and an engine in, one JSON line an episode out."""
