"""Finds the proxies and certificates that the environment sets for this process's connections."""

from __future__ import annotations

import os
import ssl
from functools import cache, partial
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from draftwise.core import InvalidSetup, cause_of

if TYPE_CHECKING:
    import httpx

_BUNDLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Environment variables that name the trusted authorities. The first one set counts."""


def find_bundle() -> tuple[str, str] | None:
    """Return the variable that names the trusted authorities, and its path; None if no variable is set."""
    return next(((name, path) for name in _BUNDLES if (path := os.environ.get(name))), None)


def open_tls() -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities from a variable, else those of the system and certifi.

    Raises:
        InvalidSetup: the variable's path has no certificates.
    """
    return _open_tls(find_bundle())


@cache  # to read the certificates takes longer than a request
def _open_tls(bundle: tuple[str, str] | None) -> ssl.SSLContext:
    if bundle is None:
        import certifi

        tls = ssl.create_default_context()
        tls.load_verify_locations(certifi.where())
    else:
        name, path = bundle
        try:
            load = partial(ssl.create_default_context, ssl.Purpose.SERVER_AUTH)
            tls = load(capath=path) if os.path.isdir(path) else load(cafile=path)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            message = f"{name}={path} holds no certificates that can be read ({cause_of(error)})."
            fix = f"Give a file of certificates in PEM, or unset {name}."
            raise InvalidSetup.because("ca-bundle-unreadable", message, where=name, fix=fix) from None
    tls.set_alpn_protocols(["http/1.1"])
    return tls


def find_proxy(url: str) -> str | None:
    """Return the proxy URL from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY for an http(s) URL.

    None for this machine's own addresses and for hosts in NO_PROXY: names, suffixes, addresses, networks (10.0.0.0/8).

    Raises:
        InvalidSetup: the variable is not an http(s) URL.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    if not proxy or is_here(host) or proxy_bypass(parts.netloc.rpartition("@")[2]) or _is_excepted(host, known):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        found = urlsplit(proxy)
        usable = found.scheme == "http" and bool(found.hostname) and (found.port or 80) > 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidSetup.because(
            "proxy-not-usable", f"The proxy {_without_password(proxy)} of the environment cannot be used.",
            where=f"{parts.scheme.upper()}_PROXY", fix="Give http://HOST:PORT, or except the server with NO_PROXY.",
        )  # fmt: skip
    return proxy


def open_client(**options: Any) -> httpx.Client:
    """Return an HTTP client for downloads that follows redirects.

    Raises:
        InvalidSetup: the environment's proxy or certificates cannot be used.
    """
    import httpx

    for scheme in ("http", "https"):
        find_proxy(f"{scheme}://example.invalid")  # httpx has no sentence for a proxy that it cannot use
    return httpx.Client(follow_redirects=True, verify=open_tls(), **options)


def is_here(host: str) -> bool:
    """Return whether a host is a loopback name or address of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_excepted(host: str, known: dict[str, str]) -> bool:
    """Whether an address lies in a network of NO_PROXY."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for each in known.get("no", "").split(","):
        try:
            if "/" in each and address in ip_network(each.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def _without_password(proxy: str) -> str:
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
