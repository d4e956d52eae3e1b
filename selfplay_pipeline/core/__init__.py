"""The base of everything else: errors, files, processes, terminal text."""
