"""Is the process alive, is it ready, and what are its numbers: for probes and Prometheus."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.domain.errors import DulyError
from duly.store.database import Database
from duly.store.migrate import schema_version
from duly.telemetry import METRICS_CONTENT_TYPE, Metrics

# A probe that waits longer than this is an answer too: not ready.
PROBE_TIMEOUT_S = 2.0


class HealthDoor:
    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        schema_wanted: int,
        ticking: Callable[[], Mapping[str, bool]],
    ) -> None:
        self.database = database
        self.metrics = metrics
        self.schema_wanted = schema_wanted
        self.ticking = ticking

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self.alive, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
            Route("/metrics", self.numbers, methods=["GET"]),
        ]

    async def alive(self, _request: Request) -> Response:
        return json_response(200, {"status": "alive"})

    async def ready(self, _request: Request) -> Response:
        checks = await self.database_checks()
        checks |= {
            f"role:{name}": "ok" if is_ticking else "not ticking"
            for name, is_ticking in self.ticking().items()
        }
        is_ready = all(answer == "ok" for answer in checks.values())
        status = "ready" if is_ready else "not ready"
        return json_response(200 if is_ready else 503, {"status": status, "checks": checks})

    async def database_checks(self) -> dict[str, str]:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                found = await schema_version(self.database)
        except (DulyError, TimeoutError):
            return {"database": "unreachable", "schema": "unknown"}
        if found < self.schema_wanted:
            return {"database": "ok", "schema": f"at {found}, needs {self.schema_wanted}"}
        return {"database": "ok", "schema": "ok"}

    async def numbers(self, _request: Request) -> Response:
        return Response(self.metrics.render(), media_type=METRICS_CONTENT_TYPE)


def json_response(status: int, body: object) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
