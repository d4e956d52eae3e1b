"""Compares the pipeline with TRL on the same games."""
