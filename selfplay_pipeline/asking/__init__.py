"""Does the policy ask more as training goes on? Reads episodes, tests for a trend, draws it."""
