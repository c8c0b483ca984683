"""What a worker and the server say to each other, as structs: leases, heartbeats, settlements."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

NULL = msgspec.Raw(b"null")

LEASE = "/v1/worker/lease"
HEARTBEAT = "/v1/worker/heartbeat"
SETTLE = "/v1/worker/settle"
LOGS = "/v1/worker/logs"
DEREGISTER = "/v1/worker/deregister"
# The most that one call may carry.
LEASE_MAX = 500
HEARTBEATS_MAX = 1000
SETTLE_MAX = 500
SETTLE_BYTES_MAX = 4 * 1024 * 1024


class ParentResult(msgspec.Struct, frozen=True):
    """How a parent of a workflow node ended: its state, and its result as JSON."""

    state: str
    result: msgspec.Raw = NULL

    @property
    def value(self) -> Any:
        """The result, read; None if there is none."""
        return msgspec.json.decode(self.result)


class LeasedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as it was handed to us."""

    id: str
    fence: int
    attempt: int
    max_attempts: int
    type: str
    scheduled_for: datetime
    started_at: datetime
    lease_until: datetime
    timeout_s: float
    execution_key: str
    payload: msgspec.Raw = NULL
    progress: msgspec.Raw = NULL
    # The W3C trace context to go on with; none from an older server.
    traceparent: str = ""
    # Granted earlier, and maybe long before we asked: its answer got lost, or seemed to be.
    again: bool = False
    # Of a workflow node: how those it comes after ended, or where to read it in pages.
    parents: dict[str, ParentResult] | None = None
    parents_url: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.fence

    @property
    def granted_s(self) -> float:
        """Both instants are the database's, so that no other clock can lengthen the lease."""
        return (self.lease_until - self.started_at).total_seconds()

    def age_s(self, lease_until: datetime, lease_s: float) -> float | None:
        """How old it was, by the database's clock, when a heartbeat extended it by `lease_s`; None
        when the attempt's time limit cut that short, and nothing can be told."""
        lasts_s = (lease_until - self.started_at).total_seconds()
        return None if lasts_s >= self.timeout_s else max(lasts_s - lease_s, 0.0)


class WorkerOrigin(NamedTuple):
    """What a worker says of itself, for its history: the SDK, the program's version, and how many
    attempts it runs at a time."""

    sdk: str = ""
    version: str = ""
    slots: int = 0


class LeaseRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    worker_id: str
    pools: list[str]
    bands: list[str]
    max: int
    wait_s: float
    lease_s: float
    request_id: str
    sdk: str = ""
    version: str = ""
    slots: int = 0


class LeaseAnswer(msgspec.Struct):
    tasks: list[LeasedTask]


class Beat(msgspec.Struct):
    id: str
    fence: int
    progress: msgspec.Raw = NULL


class HeartbeatRequest(msgspec.Struct):
    worker_id: str
    leases: list[Beat]
    lease_s: float


class BeatItem(msgspec.Struct):
    id: str
    status: str
    lease_until: datetime | None = None


class HeartbeatAnswer(msgspec.Struct):
    items: list[BeatItem]


class Settlement(msgspec.Struct, omit_defaults=True):
    id: str
    fence: int
    outcome: str
    result: msgspec.Raw | None = None
    error: str | None = None
    error_kind: str = ""
    retry_in_s: float | None = None


class DeregisterRequest(msgspec.Struct):
    worker_id: str


class SettleRequest(msgspec.Struct):
    worker_id: str
    settlements: list[Settlement]


class SettledItem(msgspec.Struct):
    id: str
    status: str


class SettleAnswer(msgspec.Struct):
    items: list[SettledItem]
