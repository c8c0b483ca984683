"""Clients that start random workflows on the broken cluster, cancel and pause some of them, and
note what they asked for; `tests/simulation/workflow_model.py` says how each may have ended.

Nodes are tasks like the others: the load reads and cancels them as it does those.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import aiohttp

from duly.domain.ids import node_id_of
from tests.chaos.cluster import POOL, Cluster, Tenant
from tests.chaos.load import BACK_OFF_S, CALL_S, TRIES_MAX, Load
from tests.simulation.workflow_clients import make_graph
from tests.simulation.workflow_facts import WantedWorkflow

RULES = ("all_completed", "none_failed", "all_done", "any_completed", "any_failed")

# Each tick of the load starts one with this chance.
START_SHARE = 0.35
CANCEL_SHARE = 0.08
PAUSE_SHARE = 0.05
PAUSE_S_MAX = 8.0
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
        return work

    # What is asked ------------------------------------------------------------------------------

    def make(self, parents: list[list[int]]) -> Flow:
        draws = self.draws
        name = f"flow-{len(self.flows) + 1}"
        rules = [draws.choice([*RULES, *["all_completed"] * 4]) for _ in parents]
        delays_s = [draws.choice(DELAYS_S) for _ in parents]
        nodes = {
            f"n{number}": self.node(f"{name}.n{number}", above, rule, delay_s)
            for number, (above, rule, delay_s) in enumerate(
                zip(parents, rules, delays_s, strict=True), 1
            )
        }
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
        )
        flow = Flow(tenant, wanted, body)
        self.flows.append(flow)
        return flow

    def node(self, request: str, above: list[int], rule: str, delay_s: float) -> dict[str, Any]:
        draws = self.draws
        tries, failures = draws.choice(TRIES)
        return {
            "type": "chaos.fail" if failures else "chaos.work",
            "after": [f"n{number}" for number in above],
            "when": rule,
            "delay_s": delay_s,
            # What fails opens breakers: of its own type, and of no host.
            "target": {"pool": POOL} if failures else self.target(),
            "payload": {
                "request": request,
                "seconds": round(draws.choice((0.0, 0.02, 0.2)), 3),
                "failures": failures,
            },
            "retry": {"max_attempts": tries, "backoff": "fixed", "initial_s": 0.2, "jitter": False},
        }

    def target(self) -> dict[str, str]:
        is_webhook = self.draws.random() < 0.4
        return {"url": self.cluster.hook_url} if is_webhook else {"pool": POOL}

    def make_wide(self) -> Flow:
        """A fan and its join; its first node fails, or it is cancelled while that runs."""
        fan = range(2, WIDE_NODES + 2)
        flow = self.make([[], *([1] for _ in fan), list(fan)])
        first = flow.body["nodes"]["n1"]
        first |= {"type": "chaos.fail", "target": {"pool": POOL}}
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
        await self.control(flow, "pause")
        await asyncio.sleep(self.draws.uniform(0.0, PAUSE_S_MAX))
        await self.control(flow, "unpause")

    async def unpause_all(self) -> None:
        """Once nothing is broken any more: a pause may have been stored without an answer."""
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        async with aiohttp.ClientSession(timeout=timeout) as self.session:
            for flow in self.flows:
                while flow.is_pause_asked:
                    status, _ = await self.control(flow, "unpause")
                    flow.is_pause_asked = status not in (200, 409)
                    await asyncio.sleep(BACK_OFF_S if flow.is_pause_asked else 0.0)

    async def control(self, flow: Flow, verb: str) -> tuple[int, Any]:
        path = f"/v1/workflows/{flow.wanted.id}/{verb}"
        status, answer, _ = await self.call(flow.tenant, path, {}, None)
        return status, answer
