"""Liveness, readiness and metrics endpoints, for probes and Prometheus."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.request import Answer, Call
from duly.domain.access import OPERATORS, Reach
from duly.domain.errors import DulyError
from duly.store.database import Database
from duly.store.migrate import schema_version
from duly.telemetry import Metrics

# A probe that waits longer than this is an answer too: not ready.
PROBE_TIMEOUT_S = 2.0
TAG = "Probes"


class Alive(msgspec.Struct, frozen=True):
    status: str


class Readiness(msgspec.Struct, frozen=True):
    status: str
    checks: dict[str, str]


class HealthRoutes:
    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        schema_wanted: int,
        problems: Callable[[], Mapping[str, str | None]],
    ) -> None:
        self.database = database
        self.metrics = metrics
        self.schema_wanted = schema_wanted
        # Of the roles of this process; None where all is well.
        self.problems = problems

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/healthz",
                summary="Liveness of the process",
                handler=self.alive,
                kind=Kind.OPEN,
                answers={200: Alive},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/readyz",
                summary="Readiness of the process",
                handler=self.ready,
                kind=Kind.OPEN,
                answers={200: Readiness, 503: Readiness},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/metrics",
                summary="Metrics in the Prometheus format",
                handler=self.numbers,
                kind=Kind.OPEN,
                access=OPERATORS,
                answers={200: str},
                answer_media_type="text/plain",
                tag=TAG,
            ),
        ]

    async def alive(self, _call: Call) -> Answer:
        return Answer(200, Alive("alive"))

    async def ready(self, _call: Call) -> Answer:
        checks = await self.database_checks()
        checks |= {f"role:{name}": problem or "ok" for name, problem in self.problems().items()}
        is_ready = all(answer == "ok" for answer in checks.values())
        status = "ready" if is_ready else "not ready"
        return Answer(200 if is_ready else 503, Readiness(status, checks))

    async def database_checks(self) -> dict[str, str]:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                found = await schema_version(self.database)
        except (DulyError, TimeoutError):
            return {"database": "unreachable", "schema": "unknown"}
        if found < self.schema_wanted:
            return {"database": "ok", "schema": f"at {found}, needs {self.schema_wanted}"}
        return {"database": "ok", "schema": "ok"}

    async def numbers(self, call: Call) -> Answer:
        """Tenant names and their numbers are shown to operators only."""
        self.metrics.show_failing_roles(self.problems())
        accept = call.header(b"accept") or ""
        numbers, kind = self.metrics.scrape(with_tenants=may_see_tenants(call), accept=accept)
        return Answer(200, numbers, content_type=kind.encode())


def may_see_tenants(call: Call) -> bool:
    credential = call.optional_credential
    return (
        credential is not None
        and credential.access in OPERATORS
        and credential.reach is Reach.INSTALLATION
    )
