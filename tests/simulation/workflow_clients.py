"""Who starts workflows: random graphs with rules, delays, deadlines, keys and callbacks; cancels
whole ones, and reads them. What was asked for is kept outside of every node; `workflow_model.py`
says from it how each may have ended."""

import asyncio
from dataclasses import replace
from random import Random

from duly.domain.ids import node_id_of
from duly.domain.retry import RetryPolicy
from duly.domain.states import TERMINAL
from duly.domain.task import Callback, Policy, Submission
from duly.domain.workflow import WAIT_RULES, OnFailure, WorkflowStop
from duly.store.control import cancelled_tasks
from duly.store.finish import Released
from duly.store.policies import encode_callback
from duly.store.submit import Replayed
from duly.store.workflow_control import stop_workflow
from duly.store.workflows import (
    NodeStart,
    Started,
    WorkflowStart,
    WorkflowStarter,
    read_workflow,
)
from tests.simulation.clients import WEBHOOK
from tests.simulation.cluster import Cluster, Node
from tests.simulation.step_clients import (
    AskedWorkflow,
    add_one,
    known_items,
    make_steps,
    pause_one,
    resume_one,
    send_one,
    unpause_all,
    unpause_one,
    with_steps,
)
from tests.simulation.workers import hear
from tests.simulation.workflow_facts import Seen, WantedWorkflow

WORKFLOWS_MAX = 8
NODES_MAX = 9
PARENTS_MAX = 4
RESENDS_MAX = 3
# Pauses, signals and added nodes are for those that still live, mostly.
RECENT_MAX = 3
# One of these is past before its nodes can end, one never comes.
DEADLINES_S = (*[None] * 5, 3.0, 20.0, 60.0, 3600.0)
DELAYS_S = (0.0, 0.0, 0.0, 1.5, 45.0)
# Half of all nodes wait for all that they come after, as most do.
RULES = [*WAIT_RULES, *["all_completed"] * 3, "all_done"]


async def start_workflows(cluster: Cluster, node: Node) -> None:
    while not cluster.is_healed:
        await asyncio.sleep(cluster.plan.tick_s * node.random.uniform(0.3, 1.5))
        started = [asked.wanted for asked in cluster.workflows if asked.start is not None]
        known = [wanted for wanted in started if wanted.id is not None]
        draw = node.random.random()
        if len(started) < WORKFLOWS_MAX and (draw < 0.6 or not known):
            await start_one(cluster, node)
        elif known and draw < 0.65:
            await cancel_one(cluster, node, node.random.choice(known))
        elif known:
            await read_one(cluster, node, node.random.choice(known))
        await meddle(cluster, node, known[-RECENT_MAX:])
    await unpause_all(cluster, node)


async def meddle(cluster: Cluster, node: Node, known: list[WantedWorkflow]) -> None:
    """What else is done to one that was started lately, and to one that has ended."""
    if not known:
        return
    random = node.random
    wanted = random.choice(known)
    waiting = [each for each in known if any(step.wait for step in each.steps.values())]
    if waiting and random.random() < 0.7:
        await send_one(cluster, node, random.choice(waiting))
    draw = random.random()
    if draw < 0.15:
        await pause_one(cluster, node, wanted)
    elif draw < 0.4 and wanted.is_pause_asked:
        await unpause_one(cluster, node, wanted)
    elif draw < 0.6:
        await add_one(cluster, node, wanted, make_node(cluster, random, wanted.tenant, None, 0.0))
    elif draw < 0.8:
        every = [asked.wanted for asked in cluster.workflows]
        chosen = random.choice([each for each in every if each.ids])
        await resume_one(cluster, node, chosen, random.choice(sorted(chosen.ids)))


async def start_one(cluster: Cluster, node: Node) -> None:
    """With a key it is sent again until it is known, and now and then twice at once."""
    asked = make_workflow(cluster, node.random)
    cluster.workflows.append(asked)
    has_key = asked.wanted.has_key
    for _ in range(RESENDS_MAX if has_key else 1):
        at_once = 2 if has_key and node.random.random() < 0.3 else 1
        await asyncio.gather(*(send(cluster, node, asked) for _ in range(at_once)))
        if asked.wanted.ids:
            return


async def send(cluster: Cluster, node: Node, asked: AskedWorkflow) -> None:
    wanted = asked.wanted
    starter = WorkflowStarter(node.database, node.submitter)
    assert asked.start is not None
    answers = await hear(cluster, [], starter.start([asked.start]))
    if answers is None:
        return
    (answer,) = answers
    assert isinstance(answer, Started | Replayed), f"{wanted.name} was refused: {answer}"
    cluster.recorder.note(f"workflow {wanted.name} is {answer.id}")
    if answer.id not in wanted.ids:
        wanted.ids.add(answer.id)
        nodes = range(1, len(wanted.parents) + 1)
        # Others cancel, move, purge and replay nodes as they do tasks.
        cluster.known += [(wanted.tenant, node_id_of(answer.id, number)) for number in nodes]
        if any(step.map for step in wanted.steps.values()):
            cluster.known += [(wanted.tenant, item) for item in known_items(answer.id)]


async def cancel_one(cluster: Cluster, node: Node, wanted: WantedWorkflow) -> None:
    wanted.is_cancel_asked = True
    if await hear(cluster, [], cancel_workflow(node, wanted)):
        wanted.cancelled_at = wanted.cancelled_at or cluster.database_now()


async def cancel_workflow(node: Node, wanted: WantedWorkflow) -> bool:
    """As the front door does it: True if it was stopped."""
    assert wanted.id is not None
    released, reason = Released(), WorkflowStop.CANCELLED
    async with node.database.transaction() as session:
        is_stopped = await stop_workflow(session, wanted.tenant, wanted.id, reason, released)
    node.events.publish(cancelled_tasks(wanted.tenant, released.cancelled, released))
    return is_stopped


async def read_one(cluster: Cluster, node: Node, wanted: WantedWorkflow) -> None:
    assert wanted.id is not None
    workflow = await hear(cluster, [], read_workflow(node.database, wanted.tenant, wanted.id))
    if workflow is not None and workflow.state in TERMINAL:
        wanted.seen.append(Seen(cluster.database_now(), workflow.state))


def make_workflow(cluster: Cluster, random: Random) -> AskedWorkflow:
    tenant = random.choice(cluster.plan.tenants)
    name = f"flow-{len(cluster.workflows) + 1}"
    parents = make_graph(random)
    rules = [random.choice(RULES) for _ in parents]
    delays_s = [random.choice(DELAYS_S) for _ in parents]
    more = Random(f"steps {cluster.plan.seed} {name}")
    on_failure = random.choice([*OnFailure, OnFailure.FINISH_BRANCHES])
    is_undone = on_failure is OnFailure.COMPENSATE
    steps, spoken = make_steps(more, parents, rules, is_undone=is_undone)
    # Everything with a key is counted on the shard of the key.
    key = random.choice([None, None, None, "a", "b"])
    nodes = [
        NodeStart(
            f"n{number}",
            make_node(cluster, random, tenant, key, delay_s),
            above,
            [child for child, others in enumerate(parents, 1) if number in others],
            WAIT_RULES[rule],
        )
        for number, (above, rule, delay_s) in enumerate(
            zip(parents, rules, delays_s, strict=True), 1
        )
    ]
    start = WorkflowStart(
        tenant,
        name,
        nodes,
        on_failure,
        random.choice(DEADLINES_S),
        make_callback(cluster, random) if random.random() < 0.4 else None,
        None,
        "key" if random.random() < 0.6 else None,
        name.encode(),
    )
    wanted = WantedWorkflow(
        tenant=tenant,
        name=name,
        parents=parents,
        rules=rules,
        delays_s=delays_s,
        on_failure=start.on_failure,
        has_key=start.idempotency_key is not None,
        has_callback=start.callback is not None,
        steps=steps,
        spoken=spoken,
    )
    return AskedWorkflow(wanted, replace(start, nodes=with_steps(nodes, wanted, more)))


def make_graph(random: Random) -> list[list[int]]:
    """Most of any shape; some a fan with its join, some a row, so that ends cascade."""
    count = random.randint(1, NODES_MAX)
    shape = random.random()
    if shape < 0.15:
        return [[], *([1] for _ in range(count)), list(range(2, count + 2))]
    if shape < 0.3:
        return [[number] if number else [] for number in range(count)]
    return [
        sorted(random.sample(range(1, number), random.randint(0, min(number - 1, PARENTS_MAX))))
        for number in range(1, count + 1)
    ]


def make_node(
    cluster: Cluster, random: Random, tenant: int, key: str | None, delay_s: float
) -> Submission:
    plan = cluster.plan
    retry = RetryPolicy(max_attempts=plan.max_attempts, initial_s=plan.backoff_s, max_s=10.0)
    is_keyed = key is not None and random.random() < 0.5
    is_webhook = plan.has_webhooks and random.random() < 0.5
    return Submission(
        tenant=tenant,
        type="node",
        delay_s=delay_s,
        url=WEBHOOK if is_webhook else None,
        pool=random.choice(["default", "other"]),
        priority=random.randint(0, 9),
        policy=Policy(
            retry=retry,
            timeout_s=plan.timeout_s,
            concurrency_key=key if is_keyed else None,
            concurrency_limit=plan.key_limits.get(key) if is_keyed and key else None,
        ),
    )


def make_callback(cluster: Cluster, random: Random) -> str:
    is_webhook = cluster.plan.has_webhooks and random.random() < 0.5
    return encode_callback(Callback("ended", url=WEBHOOK if is_webhook else None))
