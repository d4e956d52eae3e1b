"""Definitions of all figures, each once: name, formula and interval."""
