"""Does the policy ask more as training goes on? Reads dialogues, tests for a trend, draws it."""
