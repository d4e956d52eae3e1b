"""What everything else stands on: errors, files, processes, terminal text."""
