"""Games, one folder each, found by `registry.py`. Their rules are pure and seeded, without torch."""
