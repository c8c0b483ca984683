"""HTTP client for webhooks: connects only to addresses that the outbound rules allow.

What a tenant writes into a URL decides where this machine connects to; the rules are in
`domain/addresses.py`, and here they are asked of every address, at the last moment.

| event | what happens |
|---|---|
| a name leads to several addresses, one of them not allowed | refused as a whole |
| a name leads elsewhere than a moment ago | only what was just checked is connected to |
| an address reaches the socket unchecked | refused before the socket is made |
| the other end of a connection is not allowed | refused before a byte of the request is sent |
| a proxy, a cookie or a password file in the environment | not looked at |
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ClientRequest, ClientResponse

from duly.domain.addresses import OutboundRules, address_reason

AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]
Lookup: TypeAlias = Callable[[str, int], Awaitable[list[AddressInfo]]]

# Lookups of names at once; each keeps a thread busy for as long as the servers of names like.
LOOKUPS_MAX = 64
LOOKUP_S = 10.0
NAMES_KEPT_S = 10
CONNECT_S = 10.0
# Less than the 5 s after which many servers hang up: a request on a connection that is just being
# closed is a failed attempt.
IDLE_CONNECTION_S = 4.0
# The scheme is not known where sockets are made; it is asked for once more before sending.
ANY_SCHEME = "https"


class AddressRefused(OSError):
    """The address is not allowed. An OSError, because the HTTP client passes those on."""


class NameLookup:
    """Names by the operating system, in threads of their own: one that hangs holds up neither other
    names' lookups nor the end of the process."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(LOOKUPS_MAX)

    async def __call__(self, host: str, port: int) -> list[AddressInfo]:
        async with self.room, asyncio.timeout(LOOKUP_S):
            loop = asyncio.get_running_loop()
            found: asyncio.Future[list[AddressInfo]] = loop.create_future()
            arguments = (loop, found, host, port)
            threading.Thread(target=look_up, args=arguments, daemon=True).start()
            return await found


def look_up(
    loop: asyncio.AbstractEventLoop,
    found: "asyncio.Future[list[AddressInfo]]",
    host: str,
    port: int,
) -> None:
    answer: list[AddressInfo] | OSError
    try:
        answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[assignment]
    except (OSError, UnicodeError) as error:
        answer = error if isinstance(error, OSError) else OSError(str(error))
    try:
        loop.call_soon_threadsafe(land, found, answer)
    except RuntimeError:
        return  # the loop has ended, and no caller waits


def land(found: "asyncio.Future[list[AddressInfo]]", answer: "list[AddressInfo] | OSError") -> None:
    if found.done():
        return
    if isinstance(answer, OSError):
        found.set_exception(answer)
    else:
        found.set_result(answer)


class GuardedResolver(AbstractResolver):
    """All addresses of a name, or none: an attacker chooses which of them comes first."""

    def __init__(self, rules: OutboundRules, lookup: Lookup) -> None:
        self.rules = rules
        self.lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        found = await self.lookup(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        for *_, address in found:
            check(address[0], ANY_SCHEME, self.rules)
        return [
            ResolveResult(
                hostname=host,
                host=info[4][0],
                port=port,
                family=info[0],
                proto=info[2],
                flags=socket.AI_NUMERICHOST,
            )
            for info in found
        ]

    async def close(self) -> None:
        """Nothing is held."""


def check(text: str, scheme: str, rules: OutboundRules) -> None:
    if reason := address_reason(ip_address(text), scheme, rules):
        raise AddressRefused(f"the url {reason}")


def refusal_in(error: BaseException | None) -> AddressRefused | None:
    """The client wraps what a guard raised, once or twice."""
    while error is not None:
        if isinstance(error, AddressRefused):
            return error
        wrapped = getattr(error, "os_error", None)
        error = wrapped if isinstance(wrapped, OSError) else error.__cause__
    return None


def guarded_request(rules: OutboundRules) -> type[ClientRequest]:
    class GuardedRequest(ClientRequest):
        """Looks at the other end of its connection before it sends anything, also of an old one."""

        async def send(self, conn: aiohttp.connector.Connection) -> ClientResponse:
            transport = conn.transport
            peer = None if transport is None else transport.get_extra_info("peername")
            if peer is None:
                raise OSError("the connection ended before the request")
            check(peer[0], self.url.scheme, rules)
            return await super().send(conn)

    return GuardedRequest


def open_outbound(rules: OutboundRules, lookup: Lookup | None = None) -> aiohttp.ClientSession:
    """Must be called in the event loop that uses it, and closed there. Deadlines are the caller's,
    and so is the number of requests at once."""

    def make_socket(info: AddressInfo) -> socket.socket:
        check(info[4][0], ANY_SCHEME, rules)
        return socket.socket(family=info[0], type=info[1], proto=info[2])

    connector = aiohttp.TCPConnector(
        resolver=GuardedResolver(rules, lookup or NameLookup()),
        ttl_dns_cache=NAMES_KEPT_S,
        ssl=ssl.create_default_context(),
        limit=0,
        keepalive_timeout=IDLE_CONNECTION_S,
        socket_factory=make_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        request_class=guarded_request(rules),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        auto_decompress=False,
        trust_env=False,
        raise_for_status=False,
    )
