"""Analyses whether the policy asks more as training proceeds: reads episodes, tests for a trend, draws it."""
