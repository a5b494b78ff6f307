"""Host names and origins of web pages, in settings and in header fields."""

import ipaddress
import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")
_ORIGIN: Final = re.compile(r"(https?)://((?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?)")
_AUTHORITY: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::([0-9]*))?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def parse_hosts(text: str) -> tuple[str, ...]:
    """Host names and addresses separated by commas. Raises ValueError with the expected form."""
    items = _items(text)
    for item in items:
        if not _NAME.fullmatch(item):
            try:
                ipaddress.ip_network(item, strict=False)
            except ValueError:
                raise ValueError("host names or addresses, without a port") from None
    return items


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins separated by commas. Raises ValueError with the expected form."""
    items = tuple(item.lower() for item in _items(text))
    if not all(_ORIGIN.fullmatch(item) for item in items):
        raise ValueError("origins such as https://app.example.com, without a path")
    return items


def split_authority(authority: str) -> tuple[str, str]:
    """The host of an authority, in lower case without brackets and last dot, and its port."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return authority, ""
    return found[1].lower().removesuffix(".").strip("[]"), found[2] or ""


def is_address(host: str) -> bool:
    """Whether a host is an address of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_origin_of(origin: str, authority: str) -> bool:
    """Whether an origin has the host and port of an authority. A proxy may have removed TLS, so the
    scheme only gives the default port."""
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    default = _DEFAULT_PORTS[found[1]]
    host, port = split_authority(found[2])
    own_host, own_port = split_authority(authority)
    return (host, port or default) == (own_host, own_port or default)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
