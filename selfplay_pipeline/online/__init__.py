"""Self-play inside verl: each update uses new episodes of the policy that is being trained."""
