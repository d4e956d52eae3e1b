"""Do partners in training make a policy understood by strangers?"""
