"""Addresses of servers, as configurations and options name them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

HOST = re.compile(r"[\w.:%-]+")
"""Pattern of host names in any alphabet, and of numbers."""


def checked_address(url: str, example: str, key: str) -> str:
    """Returns an address without a slash at its end.

    Args:
        example: Example of an address, for messages.
        key: Environment variable that holds the server's key.

    Raises:
        ValueError: The text is not an address, or contains a secret or a query.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
        is_address = (
            parts.scheme in ("http", "https") and HOST.fullmatch(host) and parts.port != 0 and url.isprintable()
        )
    except ValueError:
        is_address = None
    if not is_address:
        raise ValueError(f"not an address such as {example}")
    if "@" in parts.netloc or parts.query:
        raise ValueError(f"leave user, password and query out of the address; the key is read from {key}")
    return url.rstrip("/")
