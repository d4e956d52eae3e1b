"""Batched self-play: a game and an engine in, one JSON line a play out."""
