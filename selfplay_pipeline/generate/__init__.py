"""Batched self-play: plays a game with an engine and writes one JSON line per episode."""
