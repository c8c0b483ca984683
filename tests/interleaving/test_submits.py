"""Submits against each other: the same key, the same batch twice, a new pool, an expired key."""

import asyncio

import pytest

from duly.domain.errors import StatementRefused
from duly.store.submit import Stored, Submitter
from tests.interleaving.calls import NOTHING
from tests.interleaving.nodes import (
    EXPIRE_KEYS,
    Nodes,
    delete_keys,
    request,
    resolve_pool,
    with_expired_key,
)
from tests.interleaving.orders import Order, Race, play_every_order
from tests.interleaving.pairs import Pair, assert_pair, assert_true
from tests.interleaving.scenes import Stage
from tests.interleaving.steps import CRASHED

LOCK_NOT_AVAILABLE = "55P03"


async def test_one_key_makes_one_task(stage: Stage, race: Race) -> None:
    """A client that retries on another node while its first try still runs pays twice."""
    nodes = Nodes(stage)
    answers = {("stored", "replayed"), ("replayed", "stored")}
    pair = Pair("", Stage.empty, nodes.submit(1), nodes.submit(2), answers)
    await assert_pair(pair, stage, race)


async def test_one_key_with_two_requests_stores_one(stage: Stage, race: Race) -> None:
    """Two different orders under one key: the second must hear of it, and never be stored."""
    nodes = Nodes(stage)
    answers = {("stored", "mismatch"), ("mismatch", "stored")}
    pair = Pair("", Stage.empty, nodes.submit(1), nodes.submit(2, "2"), answers)
    await assert_pair(pair, stage, race)


async def test_an_expired_key_is_taken_over_once(stage: Stage, race: Race) -> None:
    """Both find the key expired, and both take it."""
    nodes = Nodes(stage)
    answers = {("stored", "replayed"), ("replayed", "stored")}
    pair = Pair("", with_expired_key, nodes.submit(1), nodes.submit(2), answers)
    await assert_pair(pair, stage, race)


async def test_the_broom_spares_a_key_that_was_taken_over(stage: Stage, race: Race) -> None:
    """The deletion of old keys waits for a take-over and then deletes the new key."""
    nodes = Nodes(stage)
    answers = {("stored", "0 deleted"), ("stored", "1 deleted")}
    pair = Pair("", with_expired_key, nodes.submit(1), delete_keys, answers)
    await assert_pair(pair, stage, race)


async def test_a_batch_sent_twice_is_stored_once(stage: Stage, race: Race) -> None:
    """The first sending is still in flight when the second comes."""
    nodes = Nodes(stage)

    async def play(order: Order) -> None:
        scene = await stage.empty()
        answers = await race.run(
            order,
            lambda database: nodes.resend(database, scene),
            lambda database: nodes.resend(database, scene),
        )
        facts = await assert_true(stage, scene)
        assert len(facts.timers) == len(facts.tasks) == (answers != (CRASHED, CRASHED))
        assert set(answers) <= {"stored", NOTHING, CRASHED}
        assert answers.count("stored") <= 1

    assert await play_every_order(play) > 1


async def test_a_new_pool_gets_one_number(stage: Stage, race: Race) -> None:
    """Two nodes number one pool differently, and half of its tasks are never taken."""
    pair = Pair("", Stage.empty, resolve_pool, resolve_pool, {("pool 1", "pool 1")})
    await assert_pair(pair, stage, race)


async def test_a_key_held_open_stops_only_its_own_batch(stage: Stage) -> None:
    """A forgotten transaction holds a key, and every submit of the node waits with it."""
    held, free = await stage.empty(), await stage.empty()
    submitter = Submitter(stage.database, stage.environment)
    await submitter.submit([request(held, "1")])
    async with stage.database.transaction() as forgotten:
        await forgotten.fetch(EXPIRE_KEYS, held.tenant)
        waiting = asyncio.create_task(submitter.submit([request(held, "1")]))
        (answer,) = await submitter.submit([request(free, "1")])
        assert isinstance(answer, Stored)
        assert not waiting.done(), "it did not wait, or the other one waited for it"
        with pytest.raises(StatementRefused) as refusal:
            await waiting
    assert refusal.value.facts["code"] == LOCK_NOT_AVAILABLE
