"""Keys of servers: they come from environment variables alone, and no message shows one."""

from __future__ import annotations

import os

from selfplay_pipeline.core.errors import UserError

SERVER_KEY = "SGLANG_API_KEY"
"""Names the key of the servers of `--server-url`; also hands a launched server the one made for it."""
SHORTEST_SECRET = 8
"""Characters. Shorter keys are fillers such as EMPTY, and words of a reply may hold them."""


def key_from_environment(name: str) -> str:
    """Returns the key in an environment variable, empty if the variable is not set.

    Raises:
        UserError: the value cannot be a key.
    """
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{name}: not a key: it holds spaces or characters that no key has; set it again")
    return key


def redacted(text: str, key: str) -> str:
    """Returns a server's text without the key that the server was sent."""
    return text.replace(key, "[key]") if len(key) >= SHORTEST_SECRET else text
