"""Clients that start random workflows on the broken cluster, cancel and pause some of them, and
note what they asked for; `tests/simulation/workflow_model.py` says how each may have ended.

Nodes are tasks like the others: the load reads and cancels them as it does those.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import aiohttp

from duly.domain.ids import node_id_of
from tests.chaos.cluster import POOL, Cluster, Tenant
from tests.chaos.load import BACK_OFF_S, CALL_S, TRIES_MAX, Load
from tests.chaos.steps import with_step
from tests.simulation.step_clients import ADDED_MAX, make_append, make_steps
from tests.simulation.step_model import PLAIN, Pauses, WantedSignal
from tests.simulation.workflow_clients import make_graph
from tests.simulation.workflow_facts import WantedWorkflow

RULES = ("all_completed", "none_failed", "all_done", "any_completed", "any_failed")

# Each tick of the load starts one with this chance.
START_SHARE = 0.35
CANCEL_SHARE = 0.08
PAUSE_SHARE = 0.05
PAUSE_S_MAX = 8.0
SIGNAL_SHARE = 0.3
ADD_SHARE = 0.06
RESUME_SHARE = 0.06
SIGNALS = ("s1", "s1", "s2")
SIGNALS_MAX = 10
# More than one commit skips or cancels.
WIDE_NODES = 1_200
WIDE_EVERY_S = 30.0
DEADLINES_S = (*[None] * 6, 5.0, 60.0, 3600.0)
DELAYS_S = (0.0, 0.0, 0.0, 0.3, 4.0)
# How often a node is tried, and how often it fails before it completes. Losses are many here, and
# give up those that are tried seldom.
TRIES = (*[(30, 0)] * 12, (30, 1), (30, 2), (3, 0), (3, 1), (1, 1), (2, 99))
ALWAYS = 99


@dataclass
class Flow:
    """One workflow as its client knows it."""

    tenant: Tenant
    wanted: WantedWorkflow
    body: dict[str, Any]
    is_pause_asked: bool = False


def has_waits(flow: Flow) -> bool:
    return any(step.wait for step in flow.wanted.steps.values())


class WorkflowLoad(Load):
    """The load with workflows among its tasks. What these draw changes nothing for the others."""

    def __init__(self, cluster: Cluster, rate: float, seed: int, log: Path) -> None:
        super().__init__(cluster, rate, seed, log)
        self.draws = Random(f"workflows {seed}")
        self.flows: list[Flow] = []
        self.wide_at = time.monotonic()

    @property
    def wanted(self) -> list[WantedWorkflow]:
        return [flow.wanted for flow in self.flows]

    def tick(self) -> list[Coroutine[Any, Any, None]]:
        work = super().tick()
        if self.draws.random() < START_SHARE:
            work.append(self.start_flow(self.make(make_graph(self.draws))))
        if time.monotonic() >= self.wide_at:
            self.wide_at += WIDE_EVERY_S
            work.append(self.start_wide())
        known = [flow for flow in self.flows if flow.wanted.id is not None]
        if known and self.draws.random() < CANCEL_SHARE:
            work.append(self.cancel_flow(self.draws.choice(known[-20:])))
        if known and self.draws.random() < PAUSE_SHARE:
            work.append(self.pause_flow(self.draws.choice(known[-5:])))
        return work + self.meddle(known)

    def meddle(self, known: list[Flow]) -> list[Coroutine[Any, Any, None]]:
        """Signals and added nodes, for those that live; resumes of those that have ended."""
        draws = self.draws
        started = [flow for flow in known if flow.wanted.resumed_from is None]
        work: list[Coroutine[Any, Any, None]] = []
        waiting = [flow for flow in started[-10:] if has_waits(flow)]
        if waiting and draws.random() < SIGNAL_SHARE:
            work.append(self.send_signal(draws.choice(waiting)))
        if started and draws.random() < ADD_SHARE:
            work.append(self.add_nodes(draws.choice(started[-5:])))
        if known and draws.random() < RESUME_SHARE:
            work.append(self.resume_flow(draws.choice(known[-40:])))
        return work

    # What is asked ------------------------------------------------------------------------------

    def make(self, parents: list[list[int]], *, is_plain: bool = False) -> Flow:
        draws = self.draws
        name = f"flow-{len(self.flows) + 1}"
        rules = [draws.choice([*RULES, *["all_completed"] * 4]) for _ in parents]
        delays_s = [draws.choice(DELAYS_S) for _ in parents]
        steps, spoken = make_steps(
            Random(f"{name} {draws.random()}"), parents, rules, is_undone=False
        )
        steps = {} if is_plain else steps
        paged = {s.map.source: n for n, s in steps.items() if s.map and s.map.is_paged}
        for number in paged.values():
            delays_s[number - 1] = 0.0
        nodes = {
            f"n{number}": with_step(
                self.node(f"{name}.n{number}", above, rule, delay_s), steps.get(number, PLAIN)
            )
            for number, (above, rule, delay_s) in enumerate(
                zip(parents, rules, delays_s, strict=True), 1
            )
        }
        for number, says in spoken.items() if steps else ():
            payload = nodes[f"n{number}"].get("payload")
            if payload is not None and steps.get(number, PLAIN).map is None:
                payload["says"] = says._asdict()
        for number, step in steps.items():
            if step.map is not None:
                self.make_items_fail(nodes[f"n{number}"])
        for source, number in paged.items():
            nodes[f"n{source}"] |= {"target": {"pool": POOL}}
            nodes[f"n{source}"]["payload"]["hands"] = f"n{number}"
        body: dict[str, Any] = {"name": name, "nodes": nodes}
        body["on_failure"] = draws.choice(["finish_branches", "stop"])
        deadline_s = draws.choice(DEADLINES_S)
        if deadline_s is not None:
            body["deadline_s"] = deadline_s
        if draws.random() < 0.4:
            body["callback"] = {"type": "chaos.ended", "target": self.target()}
        tenant = draws.choices(self.cluster.tenants, (9, 1))[0]
        wanted = WantedWorkflow(
            tenant=tenant.id,
            name=name,
            parents=parents,
            rules=rules,
            delays_s=delays_s,
            on_failure=body["on_failure"],
            has_key=draws.random() < 0.6,
            has_callback="callback" in body,
            steps=steps,
            spoken=spoken,
        )
        flow = Flow(tenant, wanted, body)
        self.flows.append(flow)
        return flow

    def node(self, request: str, above: list[int], rule: str, delay_s: float) -> dict[str, Any]:
        draws = self.draws
        tries, failures = draws.choice(TRIES)
        return {
            # The type that others do well: one that mostly fails is held back by its breaker, as
            # the first attempts of a backlog of such nodes do.
            "type": "chaos.work",
            "after": [f"n{number}" for number in above],
            "when": rule,
            "delay_s": delay_s,
            # What fails opens no breaker of a host.
            "target": {"pool": POOL} if failures else self.target(),
            "payload": {
                "request": request,
                "seconds": round(draws.choice((0.0, 0.02, 0.2)), 3),
                "failures": failures,
            },
            "retry": {"max_attempts": tries, "backoff": "fixed", "initial_s": 0.2, "jitter": False},
        }

    def make_items_fail(self, node: dict[str, Any]) -> None:
        """From a place on, of some maps."""
        node["target"] = {"pool": POOL}
        node["payload"]["failures"] = 0
        if self.draws.random() < 0.4:
            node["payload"]["fails_from"] = self.draws.randint(0, 5)
            node["retry"]["max_attempts"] = 2

    def target(self) -> dict[str, str]:
        is_webhook = self.draws.random() < 0.4
        return {"url": self.cluster.hook_url} if is_webhook else {"pool": POOL}

    def make_wide(self) -> Flow:
        """A fan and its join; its first node fails, or it is cancelled while that runs."""
        fan = range(2, WIDE_NODES + 2)
        flow = self.make([[], *([1] for _ in fan), list(fan)], is_plain=True)
        first = flow.body["nodes"]["n1"]
        first["target"] = {"pool": POOL}
        first["payload"] |= {"seconds": 3.0, "failures": ALWAYS}
        first["retry"]["max_attempts"] = 3
        return flow

    # How it is asked ----------------------------------------------------------------------------

    async def start_wide(self) -> None:
        flow = self.make_wide()
        await self.start_flow(flow)
        if flow.wanted.id is not None and self.draws.random() < 0.5:
            await self.cancel_flow(flow)

    async def start_flow(self, flow: Flow) -> None:
        """With a key it is sent until it is known."""
        wanted = flow.wanted
        key = "key" if wanted.has_key else None
        for _ in range(TRIES_MAX if key else 1):
            status, answer, _ = await self.call(flow.tenant, "/v1/workflows", flow.body, key)
            if status in (200, 201):
                workflow = UUID(answer["id"])
                wanted.ids.add(workflow)
                some = self.draws.sample(range(len(wanted.parents)), min(3, len(wanted.parents)))
                self.known += [(flow.tenant, node_id_of(workflow, n + 1)) for n in some]
                return
            await asyncio.sleep(BACK_OFF_S)

    async def cancel_flow(self, flow: Flow) -> None:
        flow.wanted.is_cancel_asked = True
        status, answer = await self.control(flow, "cancel")
        # One that ended as cancelled, node by node, was never stopped.
        if status in (200, 202) and answer.get("stop_reason") == "cancelled":
            flow.wanted.cancelled_at = flow.wanted.cancelled_at or datetime.now(UTC)

    async def pause_flow(self, flow: Flow) -> None:
        """For a while; whether an answer came or not."""
        flow.is_pause_asked = True
        pauses = flow.wanted.pauses
        status, _ = await self.control(flow, "pause")
        if status == 200:
            pauses.begun(datetime.now(UTC))
        await asyncio.sleep(self.draws.uniform(0.0, PAUSE_S_MAX))
        pauses.ended(datetime.now(UTC))
        # One that is not answered may be done later, and end another pause.
        pauses.ending += 1
        status, _ = await self.control(flow, "unpause")
        pauses.ending -= status != 0

    async def send_signal(self, flow: Flow) -> None:
        """With a key it is sent until it is answered."""
        wanted, draws = flow.wanted, self.draws
        if len(wanted.signals) >= SIGNALS_MAX:
            return
        key = f"k{len(wanted.signals)}" if draws.random() < 0.5 else None
        # The key of a tenant here is an admin's.
        wish = WantedSignal(draws.choice(SIGNALS), "admin", key, None)
        place = len(wanted.signals)
        wanted.signals.append(wish)
        body = {"name": wish.name, "idempotency_key": key} if key else {"name": wish.name}
        for _ in range(TRIES_MAX if key else 1):
            status, answer = await self.control(flow, "signals", body)
            if status in (200, 201):
                wanted.signals[place] = wish._replace(number=answer["number"])
            if status:
                return
            await asyncio.sleep(BACK_OFF_S)

    async def add_nodes(self, flow: Flow) -> None:
        """From outside, once."""
        wanted = flow.wanted
        if len(wanted.added) >= ADDED_MAX:
            return
        known = [f"n{number}" for number in range(1, len(wanted.parents) + 1)]
        append = make_append(wanted, self.draws, known)
        wanted.added.append(append)
        nodes = {
            name: self.node(f"{wanted.name}.{name}", [], "all_done", 0.0) | {"after": parents}
            for name, parents in zip(append.names, append.parents, strict=True)
        }
        status, _ = await self.control(flow, "nodes", {"nodes": nodes})
        append.is_answered = status in (200, 201)
        append.is_refused = 400 <= status < 500

    async def resume_flow(self, flow: Flow) -> None:
        """One that may have ended; all resumes of one are alike."""
        ended = flow.wanted.id
        assert ended is not None
        asked = {each.wanted.resumed_from for each in self.flows}
        if ended in asked:
            return
        status, preview = await self.control(flow, "resume", {"dry_run": True})
        if status != 200:
            return
        # What always failed is mended.
        tasks = {name: flow.body["nodes"].get(name, {}) for name in preview["nodes"]}
        payloads = {
            name: node["payload"] | {"failures": 0}
            for name, node in tasks.items()
            if node.get("payload", {}).get("failures")
        }
        before = flow.wanted
        wanted = replace(
            before,
            has_key=False,
            added=[*before.added],
            signals=[],
            pauses=Pauses(),
            resumed_from=ended,
            ids=set(),
            is_cancel_asked=False,
            cancelled_at=None,
            seen=[],
        )
        self.flows.append(Flow(flow.tenant, wanted, flow.body))
        body = {"from": "failed", "payloads": payloads}
        status, answer = await self.control(flow, "resume", body)
        if status == 201:
            wanted.ids.add(UUID(answer["id"]))

    async def unpause_all(self) -> None:
        """Once nothing is broken any more: a pause may have been stored without an answer."""
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        async with aiohttp.ClientSession(timeout=timeout) as self.session:
            for flow in self.flows:
                while flow.is_pause_asked:
                    status, _ = await self.control(flow, "unpause")
                    flow.is_pause_asked = status not in (200, 409)
                    await asyncio.sleep(BACK_OFF_S if flow.is_pause_asked else 0.0)

    async def control(self, flow: Flow, verb: str, body: Any = None) -> tuple[int, Any]:
        path = f"/v1/workflows/{flow.wanted.id}/{verb}"
        status, answer, _ = await self.call(flow.tenant, path, body or {}, None)
        return status, answer
