"""Does self-play teach to read a code that the model can only speak?"""
