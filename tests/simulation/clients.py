"""The actors outside: who submits, cancels, moves, replays, purges, reads, and who intrudes.

What they know stands in the cluster, not in a node: when a node dies under a call, another one
gets the same request again.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.store.control import ControlAnswer, TimerChange, cancel_tasks, reschedule_tasks, run_now
from duly.store.dead_letters import (
    LetterFilter,
    list_dead_letters,
    replay_dead_letters,
)
from duly.store.finish import Settlement
from duly.store.lease import Beat
from duly.store.purge import purge_tasks
from duly.store.read import Filter, list_tasks, read_task
from duly.store.submit import SubmitAnswer
from duly.verify.history import CallPhase, LogEntry, Operation
from tests.simulation.cluster import Behaviour, Cluster, Node
from tests.simulation.plan import KEY_NAMES, Actor
from tests.simulation.workers import beat_once, hear, settle_once

BULK_MAX = 5
# Whoever meddles, meddles mostly with tasks that are still alive.
RECENT = 6
# How often an intruder looks for a lease that is held at this moment.
PATIENCE = 20
WEBHOOK = "https://receiver.test/"


async def submit(cluster: Cluster, node: Node) -> None:
    while cluster.requests < cluster.plan.submissions and not cluster.is_healed:
        await asyncio.sleep(node.random.uniform(0.0, cluster.plan.tick_s))
        kinds = [submit_one]
        if Actor.BULK in cluster.plan.actors:
            kinds.append(submit_bulk)
        if Actor.KEYED in cluster.plan.actors:
            kinds += [submit_keyed, submit_keyed_twice]
        if Actor.HURRIED in cluster.plan.actors:
            kinds += [submit_hurried] * len(kinds)
        await node.random.choice(kinds)(cluster, node)


def make_submission(cluster: Cluster, node: Node) -> Submission:
    """A request that no other one equals: its type is its name."""
    random, plan = node.random, cluster.plan
    cluster.requests += 1
    delay_s = random.choice([0.0, random.uniform(0.0, plan.delay_s)])
    run_at = None
    if random.random() < 0.3:
        run_at, delay_s = cluster.true_now() + timedelta(seconds=delay_s), 0.0
    start_by = None
    if Actor.EXPIRER in plan.actors and random.random() < 0.4:
        start_by = cluster.true_now() + timedelta(seconds=random.uniform(0.0, 10.0))
    retry = RetryPolicy(
        max_attempts=plan.max_attempts,
        initial_s=plan.backoff_s,
        max_s=10.0,
        non_retryable=("fatal",) if random.random() < 0.3 else (),
    )
    tenant = random.choice(plan.tenants)
    pool, priority = random.choice(["default", "other"]), random.randint(0, 9)
    key = random.choice([None, None, "a", "b"])
    is_webhook = plan.has_webhooks and random.random() < 0.6
    return Submission(
        tenant=tenant,
        type=f"request-{cluster.requests}",
        run_at=run_at,
        delay_s=delay_s,
        url=WEBHOOK if is_webhook else None,
        pool=pool,
        priority=priority,
        policy=Policy(
            retry=retry,
            timeout_s=plan.timeout_s,
            start_by=start_by,
            concurrency_key=key,
            concurrency_limit=plan.key_limits.get(key or ""),
        ),
    )


def ask_submit(cluster: Cluster, task: Submission) -> LogEntry:
    return cluster.recorder.ask(
        Operation.SUBMIT, task.tenant, key=task.idempotency_key, request=task.type
    )


def tell_submitted(cluster: Cluster, entry: LogEntry, answer: SubmitAnswer) -> None:
    cluster.recorder.answer(entry, answer=type(answer).__name__.lower(), task=answer.id)
    cluster.known.append((entry.tenant, answer.id))


async def submit_one(cluster: Cluster, node: Node) -> None:
    await submit_through_desk(cluster, node, make_submission(cluster, node))


async def submit_hurried(cluster: Cluster, node: Node) -> None:
    """Now, to one place that is soon known, and whatever may hold a task back left out."""
    task = make_submission(cluster, node)._replace(
        tenant=cluster.plan.tenants[0],
        run_at=None,
        delay_s=0.0,
        url=None,
        pool="default",
        priority=5,
    )
    policy = replace(task.policy, start_by=None, concurrency_key=None, concurrency_limit=None)
    await submit_through_desk(cluster, node, task._replace(policy=policy))


async def submit_through_desk(cluster: Cluster, node: Node, task: Submission) -> None:
    asked = ask_submit(cluster, task)
    answer = await hear(cluster, [asked], node.group_commit.submit(task), CallPhase.FAIL)
    if answer is not None:
        tell_submitted(cluster, asked, answer)


async def submit_bulk(cluster: Cluster, node: Node) -> None:
    tasks = [make_submission(cluster, node) for _ in range(node.random.randint(2, BULK_MAX))]
    if Actor.KEYED in cluster.plan.actors and node.random.random() < 0.5:
        tasks[0] = with_key(cluster, node)
    asked = [ask_submit(cluster, task) for task in tasks]
    answers = await hear(cluster, asked, node.submitter.submit(tasks))
    for entry, answer in zip(asked, answers or [], strict=answers is not None):
        tell_submitted(cluster, entry, answer)


def with_key(cluster: Cluster, node: Node) -> Submission:
    """A key's first request, the same again, or another one under the same key."""
    fresh = make_submission(cluster, node)
    key = node.random.choice(KEY_NAMES)
    first = cluster.keyed.setdefault((fresh.tenant, key), fresh._replace(idempotency_key=key))
    if node.random.random() < 0.7:
        return first
    return fresh._replace(idempotency_key=key)


async def submit_keyed(cluster: Cluster, node: Node) -> None:
    await submit_through_desk(cluster, node, with_key(cluster, node))


async def submit_keyed_twice(cluster: Cluster, node: Node) -> None:
    """Two callers at the same instant, with the same key or with two."""
    pair = [with_key(cluster, node), with_key(cluster, node)]
    await asyncio.gather(*(submit_through_desk(cluster, node, task) for task in pair))


async def wander(cluster: Cluster, node: Node) -> tuple[int, list[UUID]]:
    """Wait, then choose one tenant and some of its tasks."""
    while True:
        await asyncio.sleep(cluster.plan.tick_s * node.random.uniform(0.5, 3.0))
        if cluster.known:
            tenant = node.random.choice(cluster.plan.tenants)
            recent = cluster.known[-RECENT:] if node.random.random() < 0.8 else cluster.known
            ids = sorted({task for owner, task in recent if owner == tenant})
            if ids:
                return tenant, node.random.sample(ids, min(len(ids), cluster.plan.batch))


async def cancel(cluster: Cluster, node: Node) -> None:
    while not cluster.is_healed:
        tenant, ids = await wander(cluster, node)
        asked = [cluster.recorder.ask(Operation.CANCEL, tenant, task=task) for task in ids]
        answers = await hear(cluster, asked, cancel_tasks(node.database, tenant, ids))
        for entry in asked if answers else []:
            assert answers is not None
            assert entry.task is not None
            cluster.recorder.answer(entry, answer=str(answers[entry.task]))


async def move(cluster: Cluster, node: Node) -> None:
    while not cluster.is_healed:
        tenant, ids = await wander(cluster, node)
        moves = [choose_move(cluster, node, task) for task in ids]
        asked = [
            cluster.recorder.ask(
                Operation.MOVE, tenant, task=item.id, due_at=asked_instant(cluster, item)
            )
            for item in moves
        ]
        answers = await hear(cluster, asked, reschedule_tasks(node.database, tenant, moves))
        for entry in asked if answers else []:
            assert answers is not None
            assert entry.task is not None
            cluster.recorder.answer(entry, answer=str(answers[entry.task]))


def choose_move(cluster: Cluster, node: Node, task: UUID) -> TimerChange:
    random = node.random
    later = cluster.database_now() + timedelta(seconds=random.uniform(-5.0, 10.0))
    return random.choice(
        [
            run_now(task),
            TimerChange(task, run_at=later),
            TimerChange(task, delay_s=random.uniform(0.0, 8.0), priority=random.randint(0, 9)),
            TimerChange(task, priority=random.randint(0, 9)),
        ]
    )


def asked_instant(cluster: Cluster, item: TimerChange) -> object:
    """The earliest instant that this move can mean; None if it leaves the instant alone."""
    if item.run_at is not None:
        return max(item.run_at, cluster.database_now())
    if item.delay_s is not None:
        return cluster.database_now() + timedelta(seconds=item.delay_s)
    return None


async def replay(cluster: Cluster, node: Node) -> None:
    """Replays letters, now and then one that was replayed already, and throws some away."""
    while not cluster.is_healed:
        tenant, _ = await wander(cluster, node)
        listed = await hear(
            cluster,
            [],
            list_dead_letters(node.database, tenant, LetterFilter(), limit=cluster.plan.page),
        )
        ids = [letter.id for letter in listed[0]] if listed else []
        if ids and node.random.random() < 0.2:
            asked = [cluster.recorder.ask(Operation.PURGE_LETTER, tenant, task=i) for i in ids]
            work = purge_tasks(node.database, tenant, ids, "operator")
            if await hear(cluster, asked, work) is None:
                continue
            for entry in asked:
                cluster.recorder.answer(entry, answer="purged")
        elif ids:
            await replay_letters(cluster, node, tenant, ids)


async def replay_letters(cluster: Cluster, node: Node, tenant: int, ids: list[UUID]) -> None:
    asked = [cluster.recorder.ask(Operation.REPLAY, tenant, task=task) for task in ids]
    work = replay_dead_letters(node.database, node.environment, tenant, ids)
    replayed = await hear(cluster, asked, work)
    if replayed is None:
        return
    for entry in asked:
        new = replayed.get(entry.task) if entry.task else None
        if new is None:
            cluster.recorder.answer(entry, answer="refused")
        else:
            cluster.recorder.answer(entry, answer="replayed", task=new)
            cluster.known.append((tenant, new))


async def purge(cluster: Cluster, node: Node) -> None:
    while not cluster.is_healed:
        tenant, ids = await wander(cluster, node)
        asked = [cluster.recorder.ask(Operation.PURGE, tenant, task=task) for task in ids]
        erased = await hear(cluster, asked, purge_tasks(node.database, tenant, ids, "simulation"))
        for entry in asked if erased is not None else []:
            answer = "purged" if entry.task in (erased or []) else "refused"
            cluster.recorder.answer(entry, answer=answer)


async def observe(cluster: Cluster, node: Node) -> None:
    while not cluster.is_healed:
        tenant, ids = await wander(cluster, node)
        if node.random.random() < 0.3:
            await hear(cluster, [], list_tasks(node.database, tenant, Filter(), limit=2))
            continue
        asked = cluster.recorder.ask(Operation.READ, tenant, task=ids[0])
        seen = await hear(
            cluster, [asked], read_task(node.database, tenant, ids[0]), CallPhase.FAIL
        )
        if seen is not None:
            cluster.recorder.answer(asked, answer="seen", state=seen.state)


async def intrude(cluster: Cluster, node: Node) -> None:
    """Heartbeats and settlements of leases that are somebody else's, or long gone."""
    while not cluster.is_healed:
        await wander(cluster, node)
        for _ in range(PATIENCE):
            if any(other.held for other in cluster.nodes.values()):
                break
            await asyncio.sleep(cluster.plan.lease_s * node.random.random())
        if not cluster.leases:
            continue
        tenant, task, fence, holder = choose_lease(cluster, node)
        claimed = node.random.choice([UUID(int=7), holder])
        guess = fence if claimed != holder else fence + node.random.choice([-2, -1, 1, 2])
        if node.random.random() < 0.5:
            await beat_once(cluster, node, [Beat(task, guess)], claimed)
        else:
            outcome = node.random.choice([Outcome.COMPLETED, Outcome.FAILED, Outcome.RELEASED])
            await settle_once(cluster, node, tenant, Settlement(task, guess, claimed, outcome))
        strangers = {other for owner, other in cluster.known if owner != tenant}
        if strangers:
            stranger = min(strangers)
            answers = await hear(cluster, [], cancel_tasks(node.database, tenant, [stranger]))
            assert answers is None or answers[stranger] is ControlAnswer.UNKNOWN, "tenants leak"


def choose_lease(cluster: Cluster, node: Node) -> tuple[int, UUID, int, UUID]:
    """One that somebody holds at this moment, if there is any."""
    held = [
        (lease.tenant, lease.id, lease.fence, other.holder)
        for other in cluster.nodes.values()
        for lease in other.held.values()
    ]
    return node.random.choice(held or cluster.leases[-10:])


CLIENTS: dict[Actor, Behaviour] = {
    Actor.CANCELLER: cancel,
    Actor.MOVER: move,
    Actor.REPLAYER: replay,
    Actor.PURGER: purge,
    Actor.READER: observe,
    Actor.INTRUDER: intrude,
}
