"""`selfplay play --web`: people play in their browsers."""
