"""Games on slime (THUDM/slime): the policy has seat 0, a fixed partner all others.

Always import this package as `selfplay_pipeline.slime`; the package `slime` is another one, and nothing of it is
imported here before slime calls.
"""
