"""Addresses of servers, as configurations and options name them."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
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


def is_this_machine(url: str) -> bool:
    """Whether an address leads to this machine by its form: no proxy can stand in between."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        # The system also reads short forms, such as 127.1.
        address = ip_address(host.partition("%")[0] if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
