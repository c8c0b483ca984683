"""Node specs: what a workflow node is besides its task: its kind, its `if`, and what its kind
needs. Values.

A kind to come gets a number in `NodeKind`, a struct here, and a member of `NodeSpec` whose presence
says that a node is of it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum

from duly.domain.access import Access


class NodeKind(IntEnum):
    """What runs, once the parents of a node let it. Numbers are stored."""

    TASK = 0
    MAP = 1
    WAIT = 2
    WORKFLOW = 3


class OnTimeout(StrEnum):
    """How a wait ends that nothing has ended in time."""

    SKIP = "skip"
    FAIL = "fail"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSpec:
    """For a signal, with a timeout or without one; or without a signal, for a time."""

    signal: str | None = None
    # Who may send the signal.
    role: Access = Access.PRODUCER
    timeout_s: float | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    # Without a signal: how long, or until when.
    delay_s: float | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSpec:
    """A task for each item: of the list at `path` in the result of `parent`; of the numbers below
    `count`; or, with a parent and no path, of what that parent hands over in pages."""

    parent: str | None = None
    path: str | None = None
    count: int | None = None
    max_items: int
    # Items that have not ended at a time; None: as many as a scheduler can look at.
    max_parallel: int | None = None
    # How many may fail, of the items or of a hundred of them; without either, none.
    tolerated: int | None = None
    tolerated_percent: float | None = None

    @property
    def is_paged(self) -> bool:
        return self.parent is not None and self.path is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensationSpec:
    """The task that undoes a node which completed, or each item of a map. `payload`: without one,
    that of what it undoes; `policy`: as it is stored with a task."""

    type: str
    payload: str | None = None
    url: str | None = None
    pool: str
    priority: int
    timeout_ms: int
    policy: str | None = None
    tags: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec:
    """Another workflow, with which the node ends: a run of a type, in one version; without a
    version, of the graph in the payload of its task."""

    name: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Stored as JSON with the node; nothing for a plain task."""

    # Its `if`, as JSON (`domain/predicate.py`).
    predicate: str | None = None
    wait: WaitSpec | None = None
    map: MapSpec | None = None
    compensate: CompensationSpec | None = None
    workflow: WorkflowSpec | None = None

    @property
    def kind(self) -> NodeKind:
        if self.workflow is not None:
            return NodeKind.WORKFLOW
        if self.map is not None:
            return NodeKind.MAP
        return NodeKind.TASK if self.wait is None else NodeKind.WAIT

    @property
    def is_step(self) -> bool:
        """Whether its release decides what then happens, instead of making it due."""
        return self.kind is not NodeKind.TASK or self.predicate is not None


PLAIN = NodeSpec()
# Of the task that stands for a node which no handler runs: its id, its record, its place in lists.
STAND_IN_TYPES = {NodeKind.WAIT: "duly.wait", NodeKind.WORKFLOW: "duly.workflow"}
