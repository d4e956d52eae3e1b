"""Benchmarks: each prints one line of JSON. `make bench`, or `python -m bench NAME …` for some of them."""
