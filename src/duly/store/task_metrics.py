"""Task metrics: what the moves of tasks add to the metrics of a process: batches in, a few
additions out."""

from collections import Counter
from collections.abc import Sequence

from duly.domain.states import Outcome, State
from duly.domain.task import band_of
from duly.events import TasksFinished, TasksRescheduled
from duly.store.finish import NO_LEASE, SettleAnswer, Settlement
from duly.store.lease import Lease
from duly.store.stats import StatsBook
from duly.telemetry import BAND_NAMES, Metrics

# Outcome, whether there was no lease, state, and why a dead letter was written.
End = tuple[Outcome, bool, State | None, str | None]


def note_started(metrics: Metrics, stats: StatsBook, leases: Sequence[Lease]) -> None:
    """Attempts that begin here."""
    lags = [(lease, lease.lag_s) for lease in leases]
    stats.note_started((lease.tenant, lease.type, lag) for lease, lag in lags)
    for priority, count in Counter([lease.priority for lease in leases]).items():
        metrics.started.add(count, BAND_NAMES[band_of(priority)])
        metrics.lag.of(BAND_NAMES[band_of(priority)]).observe_many(
            lag for lease, lag in lags if lag is not None and lease.priority == priority
        )


def note_ready_waits(metrics: Metrics, waits: Sequence[tuple[int, float]]) -> None:
    """Of leases made from tickets or stored with their task: priority, and seconds since due."""
    for priority in {priority for priority, _ in waits}:
        metrics.ready_wait.of(BAND_NAMES[band_of(priority)]).observe_many(
            wait_s for each, wait_s in waits if each == priority
        )


def note_ended(metrics: Metrics, event: TasksFinished | TasksRescheduled) -> None:
    """Attempts and tasks that ended. A task cancelled before its first lease had no attempt."""
    for (outcome, is_unleased, state, reason), count in ends_of(event).items():
        if outcome is not Outcome.CANCELLED or not is_unleased:
            metrics.attempts_ended.add(count, outcome.value)
        if state is not None:
            metrics.tasks_ended.add(count, state.value)
        if reason is not None:
            metrics.dead_letters.add(count, reason)


def ends_of(event: TasksFinished | TasksRescheduled) -> Counter[End]:
    """How often the event says each kind of end. A batch of completed tasks shares one answer."""
    ended, answers = event.ended, event.answers
    if ended and answers.count(answers[0]) == len(answers):
        outcomes = [settlement.outcome for settlement in ended]
        if outcomes.count(Outcome.COMPLETED) == len(outcomes):
            return Counter({end_of(ended[0], answers[0]): len(ended)})
    return Counter([end_of(*each) for each in zip(ended, answers, strict=True)])


def end_of(settlement: Settlement, answer: SettleAnswer) -> End:
    return settlement.outcome, settlement.fence == NO_LEASE, answer.state, answer.reason
