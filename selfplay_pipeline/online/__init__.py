"""Self-play inside verl: each update is on fresh episodes of the policy that is being trained."""
