"""Tests the real commands with bad inputs and faults: refusals, recovery and losses. `make chaos` runs them."""
