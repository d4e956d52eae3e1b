"""The matching game on slime (THUDM/slime): the policy is player 0, a fixed partner is player 1.

Always import it as `selfplay_pipeline.slime`; the package `slime` is another one, and nothing of it is imported here
before slime calls.
"""
