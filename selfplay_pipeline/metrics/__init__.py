"""Every figure once: its name, formula and interval."""
