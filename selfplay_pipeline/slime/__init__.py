"""Games on slime (THUDM/slime): the policy has seat 0, a fixed partner all others.

Always import this package as `selfplay_pipeline.slime`: the package `slime` is slime itself, and is imported here only
when slime calls a hook.
"""
