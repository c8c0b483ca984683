"""Who makes workflows that do more than run tasks: nodes with `if`, waits and maps; signals,
pauses, nodes that are added, resumes. What was asked for is noted for the models, and nothing of
it is read from the engine."""

import json
from dataclasses import replace
from random import Random
from typing import NamedTuple
from uuid import UUID

from duly.domain.access import Access
from duly.domain.ids import node_id_of
from duly.domain.node_spec import (
    PLAIN,
    STAND_IN_TYPES,
    CompensationSpec,
    MapSpec,
    NodeKind,
    NodeSpec,
    OnTimeout,
    WaitSpec,
)
from duly.domain.retry import RetryPolicy
from duly.domain.states import TERMINAL
from duly.domain.task import Policy, Submission
from duly.domain.workflow import NODES_MAX, WAIT_RULES
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.store.control import publish_released
from duly.store.finish import Released
from duly.store.policies import encode_policy
from duly.store.workflow_appends import Added, Append, RefusedAppend, WorkflowAppends
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_resumes import (
    AlreadyResumed,
    Resume,
    ResumeAnswer,
    Resumed,
    read_earlier,
    resume_workflow,
)
from duly.store.workflow_signals import SentSignal, Signal, SignalRefused, send_signal
from duly.store.workflows import NodeStart, WorkflowStart, read_workflow
from tests.simulation.cluster import Cluster, Node
from tests.simulation.step_model import (
    Condition,
    Spoken,
    Step,
    WantedMap,
    WantedSignal,
    WantedWait,
)
from tests.simulation.workers import hear
from tests.simulation.workflow_facts import WantedAppend, WantedWorkflow


class AskedWorkflow(NamedTuple):
    """What is sent, and what the model knows of it; a resume is sent otherwise."""

    wanted: WantedWorkflow
    start: WorkflowStart | None


STEPS_SHARE = 0.6
SIGNALS = ("s1", "s1", "s2")
ROLES = ("producer", "producer", "producer", "operator", "admin")
SIGNALS_MAX = 6
RESENDS_MAX = 3
ADDED_MAX = 3
# Items that canceller, mover and purger know of each workflow.
ITEMS_KNOWN = 3
# Rules by which all parents have ended before the node begins.
UNDO = CompensationSpec(
    type="undo",
    pool="default",
    priority=5,
    timeout_ms=60_000,
    policy=encode_policy(Policy(retry=RetryPolicy(max_attempts=2, initial_s=0.5, max_s=2.0))),
)
OF_ALL = ("all_completed", "none_failed", "all_done")


# What nodes do ------------------------------------------------------------------------------------


def make_steps(
    random: Random, parents: list[list[int]], rules: list[str], *, is_undone: bool
) -> tuple[dict[int, Step], dict[int, Spoken]]:
    """Of some workflows. A rule may become another, where a map over pages needs it."""
    spoken = {
        number: Spoken(random.randint(0, 9), list(range(random.randint(0, 6))))
        for number in range(1, len(parents) + 1)
    }
    steps: dict[int, Step] = {}
    if random.random() > STEPS_SHARE:
        return steps, spoken
    feeding: set[int] = set()
    for number, above in enumerate(parents, 1):
        tasks = [n for n in above if n not in steps or steps[n].is_task]
        draw = random.random()
        if draw < 0.2:
            steps[number] = Step(wait=make_wait(random))
        elif draw < 0.45:
            free = [n for n in tasks if n not in feeding]
            is_paged = len(above) == 1 and free == above and random.random() < 0.6
            steps[number] = Step(map=make_map(random, tasks, rules[number - 1], is_paged=is_paged))
            if is_paged:
                feeding.add(above[0])
                rules[number - 1] = "all_completed"
        is_paged = number in steps and getattr(steps[number].map, "is_paged", False)
        if above and not is_paged and rules[number - 1] in OF_ALL and random.random() < 0.35:
            condition = make_condition(random, above, tasks)
            steps[number] = steps.get(number, Step())._replace(condition=condition)
        if is_undone and random.random() < 0.6:
            steps[number] = steps.get(number, Step())._replace(is_undoable=True)
    return steps, spoken


def make_wait(random: Random) -> WantedWait:
    if random.random() < 0.35:
        return WantedWait(None, random.choice([0.0, 1.5, 20.0]))
    return WantedWait(
        random.choice(SIGNALS),
        random.choice([1.0, 5.0, 15.0, 30.0]),
        random.choice(ROLES),
        random.choice(list(OnTimeout)).value,
    )


def make_map(random: Random, tasks: list[int], rule: str, *, is_paged: bool) -> WantedMap:
    wanted = WantedMap(
        max_parallel=random.choice([None, 1, 2, 3]),
        max_items=random.choice([1000, 1000, 1000, 4]),
        tolerated=random.choice([None, None, 1, 3]),
    )
    if wanted.tolerated is None and random.random() < 0.3:
        wanted = wanted._replace(tolerated_percent=random.choice([34, 50, 100]))
    if is_paged:
        return wanted._replace(source=tasks[0], is_paged=True)
    if tasks and rule in OF_ALL and random.random() < 0.7:
        return wanted._replace(source=random.choice(tasks))
    return wanted._replace(numbers=random.randint(0, 6), max_items=1000)


def make_condition(random: Random, above: list[int], tasks: list[int]) -> Condition:
    if tasks and random.random() < 0.6:
        return Condition(random.choice(tasks), above=random.randint(0, 6))
    state = random.choice(["COMPLETED", "COMPLETED", "FAILED", "SKIPPED"])
    return Condition(random.choice(above), state)


def spec_of(step: Step) -> NodeSpec:
    """As the front door makes it."""
    if step == Step():
        return PLAIN
    predicate = None if step.condition is None else predicate_of(step.condition)
    spec = NodeSpec(predicate=predicate, compensate=UNDO if step.is_undoable else None)
    if step.wait is not None:
        wait = step.wait
        if wait.signal is None:
            return replace(spec, wait=WaitSpec(delay_s=wait.time_s))
        return replace(
            spec,
            wait=WaitSpec(
                signal=wait.signal,
                role=Access(wait.role),
                timeout_s=wait.time_s,
                on_timeout=OnTimeout(wait.on_timeout),
            ),
        )
    if step.map is not None:
        wanted = step.map
        return replace(
            spec,
            map=MapSpec(
                parent=None if wanted.source is None else f"n{wanted.source}",
                path="/items" if wanted.source is not None and not wanted.is_paged else None,
                count=wanted.numbers,
                max_items=wanted.max_items,
                max_parallel=wanted.max_parallel,
                tolerated=wanted.tolerated,
                tolerated_percent=wanted.tolerated_percent,
            ),
        )
    return spec


def predicate_of(condition: Condition) -> str:
    asked: dict[str, object] = {"node": f"n{condition.parent}"}
    if condition.state is not None:
        return json.dumps(asked | {"of": "state", "eq": condition.state})
    return json.dumps(asked | {"path": "/answer", "gt": condition.above})


def with_steps(nodes: list[NodeStart], wanted: WantedWorkflow, random: Random) -> list[NodeStart]:
    """The nodes as they are sent; what each handler is to do is in its payload."""
    if not wanted.steps and random.random() < 0.7:
        return nodes
    feeds = {
        step.map.source: f"n{number}"
        for number, step in wanted.steps.items()
        if step.map is not None and step.map.is_paged
    }
    sent = []
    for number, node in enumerate(nodes, 1):
        step = wanted.steps.get(number, Step())
        task = node.task
        if step.wait is not None:
            task = Submission(tenant=task.tenant, type=STAND_IN_TYPES[NodeKind.WAIT])
            task = task._replace(delay_s=node.task.delay_s)
        elif step.map is None:
            orders: dict[str, object] = {"says": wanted.spoken[number]._asdict()}
            if number in feeds:
                orders["hands"] = feeds[number]
            elif random.random() < 0.12:
                orders["adds"] = add_by(wanted, number, random)
            task = task._replace(payload=json.dumps(orders))
        sent.append(replace(node, task=task, spec=spec_of(step)))
    return sent


def add_by(wanted: WantedWorkflow, number: int, random: Random) -> dict[str, list[str]]:
    """Nodes that this one adds when it completes, with the names of their parents."""
    append = make_append(wanted, random, [f"n{n}" for n in range(1, len(wanted.parents) + 1)])
    append.by = number
    wanted.added.append(append)
    return dict(zip(append.names, append.parents, strict=True))


def make_append(wanted: WantedWorkflow, random: Random, known: list[str]) -> WantedAppend:
    """One or two nodes, of which the second may come after the first."""
    place = len(wanted.added) + 1
    names = [f"added-{place}-{n}" for n in range(random.randint(1, 2))]
    parents = [
        sorted(random.sample([*known, *names[:n]], random.randint(0, min(2, len(known)))))
        for n in range(len(names))
    ]
    return WantedAppend(names=names, parents=parents, rules=["all_done"] * len(names))


def append_of(tenant: int, after: dict[str, list[str]], task: Submission) -> Append:
    names = list(after)
    nodes = [
        NodeStart(
            name,
            task,
            [names.index(parent) + 1 for parent in parents if parent in names],
            [number for number, child in enumerate(names, 1) if name in after[child]],
            WAIT_RULES["all_done"],
        )
        for name, parents in after.items()
    ]
    return Append(tenant, nodes, list(after.values()))


# What is done to workflows ------------------------------------------------------------------------


async def send_one(cluster: Cluster, node: Node, wanted: WantedWorkflow) -> None:
    """With a key it is sent again until it is answered."""
    random = node.random
    if len(wanted.signals) >= SIGNALS_MAX or wanted.id is None:
        return
    key = f"k{len(wanted.signals)}" if random.random() < 0.5 else None
    wish = WantedSignal(random.choice(SIGNALS), random.choice(ROLES), key, None)
    wanted.signals.append(wish)
    place = len(wanted.signals) - 1
    signal = Signal(wish.name, "1", "client", Access(wish.access), key)
    for _ in range(RESENDS_MAX if key else 1):
        answer = await hear(cluster, [], send(node, wanted, signal))
        if isinstance(answer, SentSignal):
            wanted.signals[place] = wish._replace(number=answer.number)
        if answer is not None:
            return


async def send(node: Node, wanted: WantedWorkflow, signal: Signal) -> SentSignal | SignalRefused:
    assert wanted.id is not None
    released = Released()
    async with node.database.transaction() as session:
        answer = await send_signal(session, wanted.tenant, wanted.id, signal, released)
    publish_released(node.events, wanted.tenant, released)
    return answer


async def pause_one(cluster: Cluster, node: Node, wanted: WantedWorkflow) -> None:
    """It stays paused until another one ends the pause, or everything heals."""
    assert wanted.id is not None
    wanted.is_pause_asked = True

    async def pause() -> bool:
        assert wanted.id is not None
        async with node.database.transaction() as session:
            return await pause_workflow(session, wanted.tenant, wanted.id, "client")

    if await hear(cluster, [], pause()):
        wanted.pauses.begun(cluster.database_now())


async def unpause_one(cluster: Cluster, node: Node, wanted: WantedWorkflow) -> bool:
    """False: without an answer."""
    wanted.pauses.ended(cluster.database_now())
    wanted.pauses.ending += 1
    try:
        return await hear(cluster, [], unpause(node, wanted)) is not None
    finally:
        wanted.pauses.ending -= 1


async def unpause(node: Node, wanted: WantedWorkflow) -> bool:
    assert wanted.id is not None
    released = Released()
    async with node.database.transaction() as session:
        is_unpaused = await unpause_workflow(session, wanted.tenant, wanted.id, released)
    publish_released(node.events, wanted.tenant, released)
    return is_unpaused


async def unpause_all(cluster: Cluster, node: Node) -> None:
    """Once nothing breaks any more."""
    for asked in cluster.workflows:
        wanted = asked.wanted
        if wanted.id is not None and wanted.is_pause_asked:
            while not await unpause_one(cluster, node, wanted):
                continue


async def add_one(cluster: Cluster, node: Node, wanted: WantedWorkflow, task: Submission) -> None:
    """From outside."""
    if wanted.id is None or len(wanted.added) >= ADDED_MAX:
        return
    known = [f"n{number}" for number in range(1, len(wanted.parents) + 1)]
    known += [name for append in wanted.added if append.is_answered for name in append.names]
    append = make_append(wanted, node.random, known)
    wanted.added.append(append)
    after = dict(zip(append.names, append.parents, strict=True))
    answer = await hear(cluster, [], add(node, wanted, append_of(wanted.tenant, after, task)))
    append.is_answered = isinstance(answer, Added)
    append.is_refused = isinstance(answer, RefusedAppend)


async def add(node: Node, wanted: WantedWorkflow, append: Append) -> Added | RefusedAppend:
    assert wanted.id is not None
    appends = WorkflowAppends(node.submitter, node.plain_settler)
    await appends.prepare(append)
    async with node.database.transaction() as session:
        answer = await appends.append(session, wanted.id, append)
    if isinstance(answer, Added):
        appends.publish(wanted.tenant, answer)
    return answer


async def resume_one(cluster: Cluster, node: Node, earlier: WantedWorkflow, ended: UUID) -> None:
    """One that has ended; the same is asked again where no answer came."""
    found = await hear(cluster, [], read_workflow(node.database, earlier.tenant, ended))
    if found is None or found.state not in TERMINAL:
        return
    wanted = wanted_resume(cluster, node, earlier, ended)
    answer = await hear(cluster, [], resume(node, wanted, ended))
    if isinstance(answer, Resumed | AlreadyResumed):
        cluster.recorder.note(f"workflow {ended} is resumed as {answer.id}")
    if isinstance(answer, Resumed):
        publish_released(node.events, wanted.tenant, answer.released)
        wanted.ids.add(answer.id)
        count = len(wanted.parents)
        cluster.known += [(wanted.tenant, node_id_of(answer.id, n + 1)) for n in range(count)]


def wanted_resume(
    cluster: Cluster, node: Node, earlier: WantedWorkflow, ended: UUID
) -> WantedWorkflow:
    """Of one workflow all resumes are alike."""
    known: list[WantedWorkflow] = [asked.wanted for asked in cluster.workflows]
    for one in known:
        if one.resumed_from == ended:
            return one
    count = len(earlier.parents)
    names = None if node.random.random() < 0.6 else [f"n{node.random.randint(1, count)}"]
    wanted = WantedWorkflow(
        tenant=earlier.tenant,
        name=earlier.name,
        parents=earlier.parents,
        rules=earlier.rules,
        delays_s=earlier.delays_s,
        on_failure=earlier.on_failure,
        has_key=False,
        has_callback=earlier.has_callback,
        steps=earlier.steps,
        spoken=earlier.spoken,
        added=[*earlier.added],
        resumed_from=ended,
        resumed_names=names,
    )
    cluster.workflows.append(AskedWorkflow(wanted, None))
    return wanted


async def resume(node: Node, wanted: WantedWorkflow, ended: UUID) -> ResumeAnswer | str:
    known = await read_earlier(node.database, wanted.tenant, ended)
    if known is None:
        return "gone"
    plan = plan_resume(known.nodes, wanted.resumed_names)
    if not isinstance(plan, ResumePlan) or not plan.again:
        return "nothing to do"
    rate = node.random.choice([None, None, 2.0])
    async with node.database.transaction() as session:
        asked = Resume(ended, plan, rate_per_s=rate)
        return await resume_workflow(session, node.environment, wanted.tenant, asked, known)


def known_items(workflow: UUID) -> list[UUID]:
    return [node_id_of(workflow, NODES_MAX + 1 + place) for place in range(ITEMS_KNOWN)]
