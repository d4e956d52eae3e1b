"""Does the default run without a GPU teach to read number words?"""
