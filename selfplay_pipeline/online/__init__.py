"""Self-play inside verl: each update is on fresh games of the policy that is being trained."""
