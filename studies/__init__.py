"""Studies of what self-play teaches: a folder each, with what they share in `common`."""
