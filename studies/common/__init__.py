"""Trainings, comparisons, verdicts and pictures that the studies share."""
