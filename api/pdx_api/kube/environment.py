"""The proxy that the environment names for an API server (HTTPS_PROXY, HTTP_PROXY, NO_PROXY), as kubectl reads it."""

import os
import re
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from pdx_api.hosts import host_problem
from pdx_api.user_info import shown_url

_PORTS = {"http": 80, "https": 443}


class ProxyError(Exception):
    """The environment names a proxy by what is not its URL."""


def url_problem(url: str) -> str:
    """Return why a text is not the URL of a server or an HTTP proxy, as a clause; empty if it is."""
    if not url.strip():
        return "it is empty"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the brackets around its host are wrong" if re.search(r"[][]", url) else "its host name is not valid"
    if parts.scheme not in _PORTS:
        return "it does not begin with https:// or http://"
    if not parts.hostname:
        return "it names no host"
    try:
        port = parts.port
    except ValueError:
        port = 0
    return "its port is not a number from 1 to 65535" if port == 0 else host_problem(parts.hostname)


def proxy_of(url: str) -> str | None:
    """Return the URL of the HTTP proxy for requests to this URL, which `url_problem` accepts; None without one.

    A proxy of another kind (SOCKS) is not supported, and is ignored. Raises ProxyError.
    """
    parts = urlsplit(url)
    name, proxy = _variable(f"{parts.scheme}_proxy")
    host = (parts.hostname or "").rstrip(".")
    if not proxy or _is_local(host) or _is_excepted(host, parts.port or _PORTS.get(parts.scheme, 0)):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        return None
    if problem := url_problem(proxy):
        raise ProxyError(f"{name} is {shown_url(proxy)}, which is not the URL of a proxy: {problem}")
    return proxy


def _variable(name: str) -> tuple[str, str]:
    """Return the name of the variable that is set, in upper or lower case, and its value; empty if none is."""
    return next(((each, value) for each in (name.upper(), name) if (value := os.environ.get(each))), (name, ""))


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_excepted(host: str, port: int) -> bool:
    """Whether NO_PROXY has the host: as an address, a network, a domain (`a.b`: also what is below it), or `*`."""
    entries = filter(None, (entry.strip().lower() for entry in _variable("no_proxy")[1].split(",")))
    return any(_fits(entry, host, port) for entry in entries)


def _fits(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isascii() and number.isdecimal() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        below = entry.removeprefix("*").lstrip(".")
        return host.endswith(f".{below}") or (host == entry)
