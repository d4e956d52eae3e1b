import sys

# `python -m` puts the working directory first, whose files must not run as code. No import may come before this.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]
