"""Bad inputs and faults against the real commands: what is handled, and what is lost. `make chaos` runs it."""
