"""`selfplay doctor`: whether a model, a configuration and a machine go together, before anything is loaded."""
