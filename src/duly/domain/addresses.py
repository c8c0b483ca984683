"""Webhook destinations: the accepted spelling of URLs, and the addresses that names may resolve to.

Pure rules. `execution/webhooks/http_client.py` applies them to every address before it connects: a
name that was harmless at submit may resolve to another address a second later.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

DEFAULT_PORTS = {"http": 80, "https": 443}
PORTS_ALLOWED = frozenset({80, 443, 8080, 8443})
# With private targets allowed, any port that an ordinary program may listen on.
PORT_UNPRIVILEGED = 1024
PORT_MAX = 65535
NAME_CHARACTERS_MAX = 253

# Printable ASCII without what readers of URLs disagree about.
URL_CHARACTERS = re.compile(r"[!$-;=?-\[\]_a-z~]+")
URL = re.compile(r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?]*)(?P<rest>[/?].*)?")
PLACE = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d{1,5}))?")
LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A name that ends so is read as a number by some resolvers: 2130706433, 127.1, 0x7f.1
NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
# Names that lead to this machine wherever they are asked.
LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


# Where clouds serve metadata and credentials to their machines, some inside private ranges: only an
# explicit network allows them. 169.254.0.0/16 (nearly every cloud), 168.63.129.16 (the Azure host),
# 100.100.100.200 (Alibaba), 192.0.0.192 (Oracle), fd00:ec2:: (AWS), fd20:ce:: (Google), fd00:42::42
# (Scaleway).
CLOUD_SERVICES = networks(
    "169.254.0.0/16",
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "fd00:ec2::/32",
    "fd20:ce::/32",
    "fd00:42::42/128",
)
# Private networks: allowed only where private targets are.
PRIVATE = networks(
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "::1/128",
    "fc00::/7",
)
# Reserved, multicast and documentation addresses: only an explicit network allows them.
SPECIAL = networks(
    "0.0.0.0/8",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
)
# Everything else of IPv6 is reserved, local, multicast or not assigned.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# A translator turns these into the IPv4 address in their last 32 bits.
NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class OutboundRules:
    """What this installation allows. The default is safe where tenants are not trusted."""

    allow_private: bool = False
    allow_networks: tuple[Network, ...] = ()
    ports: frozenset[int] = PORTS_ALLOWED


STRICT = OutboundRules()


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL in its one unambiguous reading."""

    scheme: str
    host: str
    port: int
    # Where the host is spelled as an address.
    address: Address | None = None


def url_reason(url: str, rules: OutboundRules) -> str | None:
    """Why this URL may not be called; None if, as far as its text goes, it may."""
    read = read_url(url)
    return read if isinstance(read, str) else destination_reason(read, rules)


def read_url(url: str) -> Destination | str:
    """Strict, so that no two readers of the URL can see two hosts in it; a text is the reason."""
    if not url.isascii():
        return "has a character outside ASCII: write names as xn--..., and others as %XX"
    if not URL_CHARACTERS.fullmatch(url):
        return "has a backslash, a space, a fragment, or another character that a URL may not have"
    parts = URL.fullmatch(url)
    if parts is None:
        return "is not of the form https://host/path"
    scheme = parts["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        return "has a scheme that is neither https nor http"
    if "@" in parts["authority"]:
        return "has a user name or password; use the header Authorization"
    place = PLACE.fullmatch(parts["authority"])
    if place is None or not place["host"]:
        return "has no host, or a port that is no number"
    port = DEFAULT_PORTS[scheme] if place["port"] is None else int(place["port"])
    host = place["host"].lower()
    if host.startswith("["):
        address = read_address(host[1:-1], 6)
        if address is None:
            return "has an IPv6 address that is not spelled as one"
        return Destination(scheme, host[1:-1], port, address)
    address = read_address(host, 4)
    if address is None and (reason := name_reason(host)):
        return reason
    return Destination(scheme, host, port, address)


def read_address(text: str, version: int) -> Address | None:
    """Only the one usual spelling: no zone, no octal, no missing parts."""
    if "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address if address.version == version else None


def name_reason(host: str) -> str | None:
    labels = host.removesuffix(".").split(".")
    if len(host) > NAME_CHARACTERS_MAX or not all(LABEL.fullmatch(label) for label in labels):
        return "has a host that is not a name"
    if NUMERIC_LABEL.fullmatch(labels[-1]):
        return "has a host that is an address in an unusual spelling; write four decimal numbers"
    return None


def destination_reason(destination: Destination, rules: OutboundRules) -> str | None:
    if destination.scheme == "http" and not (rules.allow_private or rules.allow_networks):
        return "must begin with https://"
    if reason := port_reason(destination.port, rules):
        return reason
    if destination.address is not None:
        return address_reason(destination.address, destination.scheme, rules)
    name = destination.host.removesuffix(".")
    is_local = name in LOCAL_NAMES or name.endswith(".localhost")
    if is_local and not (rules.allow_private or rules.allow_networks):
        return "leads to a private address"
    return None


def port_reason(port: int, rules: OutboundRules) -> str | None:
    is_own = rules.allow_private and PORT_UNPRIVILEGED <= port <= PORT_MAX
    return None if port in rules.ports or is_own else f"has port {port}, which is not allowed"


def address_reason(address: Address, scheme: str, rules: OutboundRules) -> str | None:
    """Why duly does not connect there. Says of what kind the address is, never which one it is:
    what a name resolves to inside a private network is not disclosed."""
    meant = meant_by(address)
    if is_within(meant, rules.allow_networks):
        return None
    if scheme == "http" and not rules.allow_private:
        return "must begin with https://"
    if is_within(meant, CLOUD_SERVICES):
        return "leads to an address of cloud metadata services"
    if is_within(meant, PRIVATE):
        return None if rules.allow_private else "leads to a private address"
    if is_within(meant, SPECIAL):
        return "leads to a reserved address"
    if isinstance(meant, IPv6Address) and meant not in GLOBAL_UNICAST:
        return "leads to a reserved address"
    return None


def meant_by(address: Address) -> Address:
    """The address that is really reached, where IPv6 wraps one of IPv4."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        if address.scope_id is not None:
            return IPv6Address(int(address))
    return address


def is_within(address: Address, allowed: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in allowed)
