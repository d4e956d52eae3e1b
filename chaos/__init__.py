"""Tests the real commands with faults that only a process can show. `make chaos` runs them."""
