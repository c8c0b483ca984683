"""Workflows of the whole installation, shown as metrics: started, ended, living, and overdue.

Counted from the tables, because workflows start and end in every process, also inside of commits
of workers and of other workflows.

| event | what happens |
|---|---|
| the leader changes | the new one counts from its first look on; what moved in between is missing |
| a commit comes later than the margin after its instant | it is not counted |
"""

from datetime import datetime

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.metric_queries import MARGIN_S, WorkflowCounts, count_workflows
from duly.store.workflow_timers import TimerKind
from duly.telemetry import TERMINAL_STATES, Metrics


class WorkflowFigures:
    name = "workflow_counts"
    period_s = 30.0

    def __init__(self, database: Database, metrics: Metrics, margin_s: float = MARGIN_S) -> None:
        self.database = database
        self.metrics = metrics
        self.margin_s = margin_s
        self.since: datetime | None = None

    async def run_once(self) -> Report:
        found = await count_workflows(self.database, self.since, self.margin_s)
        self.since = found.until
        self.metrics.workflows_started.add(found.started)
        ended = (found.completed, found.failed, found.cancelled)
        for state, count in zip(TERMINAL_STATES, ended, strict=True):
            self.metrics.workflows_ended.add(count, state)
        self.show(found)
        return Report()

    def show(self, found: WorkflowCounts) -> None:
        """As of now."""
        metrics = self.metrics
        metrics.workflows.set(
            {
                ("running",): float(found.running),
                ("paused",): float(found.paused),
                ("compensating",): float(found.compensating),
            }
        )
        metrics.workflow_nodes.set(float(found.nodes))
        timers = dict(zip(found.kinds, found.timers, strict=True))
        metrics.workflow_timers.set(
            {(kind.value,): float(timers.get(kind.value, 0)) for kind in TimerKind}
        )
        metrics.workflow_timers_failing.set(float(found.failing))
        metrics.workflow_overdue.set(found.overdue_s)
