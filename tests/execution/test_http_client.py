"""The guard at the moment of connecting: a trap listens where nobody may go, and must hear nothing.

127.0.0.2 plays the allowed internet, 127.0.0.1 the inside: both are this machine.
"""

import socket
from collections.abc import AsyncIterator
from ipaddress import ip_network

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from duly.domain import addresses
from duly.domain.addresses import STRICT, OutboundRules
from duly.domain.states import Outcome
from duly.execution.attempt import AttemptResult
from duly.execution.webhooks import http_client
from duly.execution.webhooks.http_client import AddressInfo, Lookup, NameLookup
from tests.domain.test_addresses import HOSTILE
from tests.execution.conftest import Senders, lease_of
from tests.execution.receiver import Receiver, answer, receiving

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"


def info(address: str, port: int) -> AddressInfo:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, 6, "", (address, port))


def names(*answers: list[str]) -> tuple[Lookup, list[str]]:
    """A server of names: each lookup gets the next answer, the last one for ever."""
    asked: list[str] = []

    async def lookup(host: str, port: int) -> list[AddressInfo]:
        asked.append(host)
        return [info(address, port) for address in answers[min(len(asked), len(answers)) - 1]]

    return lookup, asked


@pytest.fixture
async def trap() -> AsyncIterator[Receiver]:
    async with receiving(INSIDE) as receiver:
        yield receiver


def outside_of(trap: Receiver) -> OutboundRules:
    return OutboundRules(
        allow_networks=(ip_network(f"{OUTSIDE}/32"),), ports=frozenset({trap.port})
    )


def is_refused(verdict: AttemptResult) -> bool:
    return (verdict.outcome, verdict.error_kind) == (Outcome.REJECTED, "address_refused")


@pytest.mark.parametrize("url", HOSTILE)
async def test_a_hostile_url_opens_no_connection(
    senders: Senders, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may have been stored before a rule came, or past the door that checks it."""

    def make(*_: object, **__: object) -> socket.socket:
        raise AssertionError("a socket was made")

    lookup, asked = names([INSIDE])
    sender = senders.open(STRICT, lookup=lookup)
    monkeypatch.setattr(socket, "socket", make)
    assert is_refused(await sender(lease_of(url)))
    assert asked == []
    assert senders.told == []


async def test_an_allowed_name_is_called_by_its_name(senders: Senders, trap: Receiver) -> None:
    """The request goes to the checked address; the host it asks for stays the one of the URL."""
    lookup, asked = names([OUTSIDE])
    sender = senders.open(outside_of(trap), lookup=lookup)
    async with receiving(OUTSIDE, trap.port) as receiver:
        verdict = await sender(lease_of(f"http://api.example.com:{trap.port}/x"))
        assert verdict.outcome is Outcome.COMPLETED
        assert receiver.requests[0].headers["host"] == f"api.example.com:{trap.port}"
    assert asked == ["api.example.com"]
    assert trap.connections == 0


@pytest.mark.parametrize(
    "addresses",
    [
        [INSIDE],
        [OUTSIDE, INSIDE],
        [INSIDE, OUTSIDE],
        ["::1", OUTSIDE],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["fe80::1%lo"],
    ],
)
async def test_one_forbidden_address_refuses_the_name(
    senders: Senders, trap: Receiver, addresses: list[str]
) -> None:
    """With one public and one private address, the attacker chooses which is tried first."""
    lookup, _ = names(addresses)
    sender = senders.open(outside_of(trap), lookup=lookup)
    async with receiving(OUTSIDE, trap.port) as receiver:
        verdict = await sender(lease_of(f"http://rebind.example.com:{trap.port}/"))
        assert is_refused(verdict), verdict
        assert receiver.connections == 0
    assert trap.connections == 0
    assert INSIDE not in (verdict.error or "")


async def test_a_name_that_changes_between_two_looks_leads_nowhere(
    senders: Senders, trap: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked once and looked up again to connect, the second answer would be the inside."""
    monkeypatch.setattr(http_client, "NAMES_KEPT_S", 0)
    lookup, asked = names([OUTSIDE], [INSIDE])
    sender = senders.open(outside_of(trap), lookup=lookup)
    url = f"http://rebind.example.com:{trap.port}/"
    async with receiving(OUTSIDE, trap.port) as receiver:
        receiver.behave = answer(200, b"", Connection="close")
        # The first look is what is connected to: there is no second one.
        assert (await sender(lease_of(url))).outcome is Outcome.COMPLETED
        assert asked == ["rebind.example.com"]
        assert receiver.connections == 1
    # Its connection is gone, so it must be looked up again.
    assert is_refused(await sender(lease_of(url)))
    assert len(asked) == 2
    assert trap.connections == 0


class Careless(AbstractResolver):
    """What a resolver would be that nobody guards."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=INSIDE, port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def test_no_socket_is_made_for_an_address_that_slipped_through(
    senders: Senders, trap: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver is one guard; a cache or a library in between must not be the way around it."""
    monkeypatch.setattr(http_client, "GuardedResolver", lambda *_: Careless())
    verdict = await senders.open(outside_of(trap))(lease_of(f"http://x.example:{trap.port}/"))
    assert is_refused(verdict), verdict
    assert trap.connections == 0


async def test_nothing_is_sent_to_a_peer_that_is_not_allowed(
    senders: Senders, trap: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all else let it through, the other end is looked at before the first byte."""
    monkeypatch.setattr(http_client, "GuardedResolver", lambda *_: Careless())
    plain = aiohttp.TCPConnector

    def unguarded(**how: object) -> aiohttp.TCPConnector:
        return plain(resolver=Careless())

    monkeypatch.setattr(aiohttp, "TCPConnector", unguarded)
    verdict = await senders.open(outside_of(trap))(lease_of(f"http://x.example:{trap.port}/"))
    assert is_refused(verdict), verdict
    assert trap.connections == 1
    assert trap.requests == []


async def test_proxies_and_cookies_of_the_environment_are_not_used(
    senders: Senders, trap: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy connects wherever it is told, past every guard; a cookie tells tenants apart."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{INSIDE}:{trap.port}")
    async with receiving(OUTSIDE) as receiver:
        rules = OutboundRules(
            allow_networks=(ip_network(f"{OUTSIDE}/32"),), ports=frozenset({receiver.port})
        )
        sender = senders.open(rules)
        receiver.behave = answer(200, b"", Set_Cookie="tenant=one")
        for number in (1, 2):
            verdict = await sender(lease_of(receiver.url, number=number))
            assert verdict.outcome is Outcome.COMPLETED
        assert [("cookie" in request.headers) for request in receiver.requests] == [False, False]
    assert trap.connections == 0


async def test_an_unknown_name_is_tried_again(senders: Senders) -> None:
    """A name that does not exist yet, or a server of names that is away, is no verdict."""

    async def nobody(host: str, port: int) -> list[AddressInfo]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    verdict = await senders.open(lookup=nobody)(lease_of("http://nobody.example:8080/"))
    assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, "dns")


async def test_names_are_looked_up_by_the_system() -> None:
    """The default must find what everybody else on the machine finds."""
    found = await NameLookup()("localhost", 80)
    assert {address[0] for *_, address in found} <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match=r"."):
        await NameLookup()("no-such-name.invalid", 80)


async def test_plain_http_goes_only_where_a_network_is_listed(
    senders: Senders, trap: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One listed network must not turn off TLS towards the rest of the world."""
    monkeypatch.setattr(addresses, "PRIVATE", ())
    lookup, _ = names([INSIDE])
    sender = senders.open(outside_of(trap), lookup=lookup)
    verdict = await sender(lease_of(f"http://public.example:{trap.port}/"))
    assert is_refused(verdict)
    assert "https" in (verdict.error or "")
    assert trap.requests == []
