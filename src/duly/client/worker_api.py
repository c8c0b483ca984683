"""The calls of a worker, each tried once: who calls decides when to try again.

Whatever goes wrong is an ApiError (the server said no) or Unreachable (it said nothing sensible).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from duly.client.errors import Unreachable
from duly.client.http_async import Connection
from duly.client.leased_tasks import (
    DEREGISTER,
    HEARTBEAT,
    LEASE,
    LOGS,
    SETTLE,
    Beat,
    BeatItem,
    DeregisterRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LeaseAnswer,
    LeasedTask,
    LeaseRequest,
    SettleAnswer,
    SettledItem,
    Settlement,
    SettleRequest,
)
from duly.client.server import Server
from duly.client.wire import TRIES_MAX

Answer = TypeVar("Answer")
encode = msgspec.json.Encoder().encode
decode_leases = msgspec.json.Decoder(LeaseAnswer).decode
decode_heartbeats = msgspec.json.Decoder(HeartbeatAnswer).decode
decode_settled = msgspec.json.Decoder(SettleAnswer).decode


class WorkerApi:
    """For one event loop: `connection` belongs to the loop that first uses it."""

    def __init__(self, server: Server, worker_id: str, lease_s: float, timeout_s: float) -> None:
        self.connection = Connection(server, timeout_s, tries=1)
        self.worker_id = worker_id
        self.lease_s = lease_s

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        return (await self.ask(LEASE, request, decode_leases, request.wait_s)).tasks

    async def heartbeat(
        self, beats: Sequence[Beat], lease_s: float | None = None
    ) -> list[BeatItem]:
        """One answer for each, in order."""
        request = HeartbeatRequest(self.worker_id, list(beats), lease_s or self.lease_s)
        items = (await self.ask(HEARTBEAT, request, decode_heartbeats)).items
        return self.all_of(items, beats)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettledItem]:
        """One answer for each, in order."""
        request = SettleRequest(self.worker_id, list(settlements))
        items = (await self.ask(SETTLE, request, decode_settled)).items
        return self.all_of(items, settlements)

    async def send_logs(self, chunks: Sequence[Any]) -> None:
        body = {"worker_id": self.worker_id, "chunks": list(chunks)}
        await self.connection.request("POST", LOGS, encode(body))

    async def hand_over(self, path: str, content: bytes) -> None:
        """Items of a map. Tried again, as other calls are: the server compares their places."""
        await self.connection.request("POST", path, content, tries=TRIES_MAX)

    async def deregister(self) -> None:
        """Servers before this call answer 404, and take the worker for live a while longer."""
        request = DeregisterRequest(self.worker_id)
        await self.connection.request("POST", DEREGISTER, encode(request))

    async def ask(
        self, path: str, request: Any, decode: Callable[[bytes], Answer], wait_s: float = 0.0
    ) -> Answer:
        try:
            return decode(
                await self.connection.request("POST", path, encode(request), wait_s=wait_s)
            )
        except msgspec.DecodeError as error:
            raise self.unreachable(str(error)) from error

    def all_of(self, items: list[Any], asked: Sequence[Any]) -> list[Any]:
        if len(items) != len(asked):
            raise self.unreachable(f"it answered {len(items)} of {len(asked)} items")
        return items

    def unreachable(self, problem: str) -> Unreachable:
        return Unreachable(url=self.connection.server.url, problem=problem)

    async def close(self) -> None:
        await self.connection.close()
