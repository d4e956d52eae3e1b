"""Does self-play teach to listen on DialOp's own boards?"""
