"""Parts of which commands are made: options for keys of the configuration, help texts, printed lines."""
