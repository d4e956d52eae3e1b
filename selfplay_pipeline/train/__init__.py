"""Parquet rows → a better checkpoint, with verl's own trainer as a child process. Imports nothing heavy."""
