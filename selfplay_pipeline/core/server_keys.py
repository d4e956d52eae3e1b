"""Keys of servers: they come only from environment variables, and no message shows them."""

from __future__ import annotations

import os

from selfplay_pipeline.core.errors import UserError

SERVER_KEY = "SGLANG_API_KEY"
"""Variable with the key of the servers of `--server-url`; it also passes the generated key to a launched server."""
SHORTEST_SECRET = 8
"""Smallest length of a secret in characters. Shorter keys are placeholders such as EMPTY, and may be words of a
completion.
"""


def key_from_environment(name: str) -> str:
    """Returns the key in an environment variable; empty if the variable is not set.

    Raises:
        UserError: The value is not a valid key.
    """
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{name}: not a key: it holds spaces or characters that no key has; set it again")
    return key


def redacted(text: str, key: str) -> str:
    """Returns a server's text without the key that was sent to the server."""
    return text.replace(key, "[key]") if len(key) >= SHORTEST_SECRET else text
