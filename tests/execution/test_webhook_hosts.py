"""One host among many: its share of requests, its place in the time limit, its retries."""

import asyncio

import pytest

from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution.attempt import AttemptResult
from duly.execution.webhooks import sender as webhooks
from duly.store.lease import Lease
from duly.testing.clock import ManualClock
from tests.execution.conftest import Senders, lease_of
from tests.execution.receiver import Receiver, Request, answer, hang, receiving

PATIENCE_S = 10.0


async def test_a_host_gets_no_more_than_its_share(senders: Senders, receiver: Receiver) -> None:
    """A slow host must neither drown in our requests nor take every place we have."""
    open_up = asyncio.Event()

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        await open_up.wait()
        await answer(200)(request, writer)

    receiver.behave = wait
    sender = senders.open(host_concurrency=3)
    tasks = [
        asyncio.ensure_future(sender(lease_of(receiver.url, number=number)))
        for number in range(1, 11)
    ]
    await receiver.until_present(3)
    async with receiving() as other:
        assert (await sender(lease_of(other.url))).outcome is Outcome.COMPLETED
    same_host = lease_of(receiver.url, number=99, tenant=2)
    of_another_tenant = asyncio.ensure_future(sender(same_host))
    await receiver.until_present(4)
    open_up.set()
    verdicts = await asyncio.gather(*tasks, of_another_tenant)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.COMPLETED}
    assert receiver.present_most == 4
    assert sender.host_slots.hosts == {}


async def test_what_finds_no_place_is_given_back_uncharged(
    senders: Senders, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting here for ever, attempts for one slow host would run out of time and be charged."""
    monkeypatch.setattr(webhooks, "HOST_WAITING_MAX", 0)
    monkeypatch.setattr(webhooks, "HOST_WAIT_S", 0.05)
    receiver.behave = hang
    sender = senders.open(host_concurrency=1)

    def start(lease: Lease) -> "asyncio.Future[AttemptResult]":
        return asyncio.ensure_future(sender(lease))

    first = start(lease_of(receiver.url))
    await asyncio.wait_for(receiver.arrived.wait(), PATIENCE_S)
    waited = await start(lease_of(receiver.url, number=2))
    # Known to be slow now: nobody waits for it any more.
    monkeypatch.setattr(webhooks, "HOST_WAIT_S", 3600.0)
    turned_away = await asyncio.wait_for(start(lease_of(receiver.url, number=3)), PATIENCE_S)
    for verdict in (waited, turned_away):
        assert verdict.outcome is Outcome.RELEASED
        assert 0.5 < (verdict.retry_in_s or 0) <= 45
    assert senders.told == []
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(receiver.left.wait(), PATIENCE_S)
    assert sender.host_slots.hosts == {}


@pytest.mark.parametrize(("asked", "wish_s"), [({}, None), ({"Retry_After": "5"}, 5.0)])
async def test_a_stretch_leaves_the_wait_to_policy_and_receiver(
    senders: Senders, receiver: Receiver, asked: dict[str, str], wish_s: float | None
) -> None:
    """In the place of the backoff, it would bring an hour's wait down to less than a minute."""
    receiver.behave = answer(503, b"", **asked)
    verdict = await senders.open(stretch=lambda *_: 45.0)(lease_of(receiver.url))
    assert (verdict.retry_in_s, verdict.at_least_s) == (wish_s, 45.0)
    receiver.behave = answer(200, b"")
    verdict = await senders.open(stretch=lambda *_: 45.0)(lease_of(receiver.url))
    assert verdict.at_least_s is None


async def test_waiting_for_a_place_is_part_of_the_time_limit(
    senders: Senders, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On top of it, the attempt outlives its lease, and its end cannot be recorded."""
    clock = ManualClock()
    sender = senders.open(host_concurrency=1)
    sender.environment = Environment(clock=clock)
    limits: list[float] = []
    may_end = asyncio.Event()

    async def deliver(_lease: Lease, _secrets: list[bytes], limit_s: float) -> AttemptResult:
        limits.append(limit_s)
        await may_end.wait()
        return AttemptResult()

    monkeypatch.setattr(sender, "deliver", deliver)
    both = [asyncio.ensure_future(sender(lease_of(receiver.url, number=n))) for n in (1, 2)]
    async with asyncio.timeout(PATIENCE_S):
        while [r.present for r in sender.host_slots.hosts.values()] != [2]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    clock.advance(1.5)
    may_end.set()
    await asyncio.gather(*both)
    assert limits[1] == pytest.approx(limits[0] - 1.5)
