"""The experiment with the shy partner on slime (THUDM/slime), and the analysis of the policy's questions.

The policy has seat 0, a fixed partner all others. The analysis reads runs of our own loop too.

`commands.py` has the commands of `selfplay slime`. Nothing else in the package needs this folder.

Always import this package as `selfplay_pipeline.slime`: the package `slime` is slime itself, and is imported here only
when slime calls a hook.
"""
