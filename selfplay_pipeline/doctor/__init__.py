"""`selfplay doctor`: checks that a model, a configuration and a machine fit together, before anything is loaded."""
