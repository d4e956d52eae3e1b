"""People who play: `selfplay play` at the terminal and in browsers, studies, and the figures of people.

`commands.py` has the commands. Nothing else in the package needs this folder but `evaluate --people`.
"""
