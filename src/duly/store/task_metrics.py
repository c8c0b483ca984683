"""What the moves of tasks add to the metrics of a process: batches in, a few additions out."""

from collections import Counter
from collections.abc import Iterable, Sequence

from duly.domain.states import FailureReason, Outcome, State
from duly.domain.task import band_of
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Lease
from duly.store.stats import StatsBook
from duly.telemetry import BAND_NAMES, Metrics


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


def note_settled(
    metrics: Metrics, settlements: Iterable[Settlement], answers: Iterable[SettleAnswer]
) -> None:
    """Only what changed something: a replay was counted before, a stale settlement is no end."""
    ends = Counter(
        [
            (settlement.outcome, answer.state, answer.reason)
            for settlement, answer in zip(settlements, answers, strict=True)
            if answer.status is SettleStatus.SETTLED
        ]
    )
    for (outcome, state, reason), count in ends.items():
        metrics.attempts_ended.add(count, outcome.value)
        note_ended(metrics, state, reason, count)


def note_lost(metrics: Metrics, answers: Iterable[SettleAnswer]) -> None:
    """Leases that ran out."""
    for (state, reason), count in Counter((each.state, each.reason) for each in answers).items():
        metrics.attempts_ended.add(count, Outcome.LEASE_LOST.value)
        note_ended(metrics, state, reason, count)


def note_unstarted(metrics: Metrics, count: int) -> None:
    """Tasks that did not start by the instant that they had to."""
    if count:
        metrics.attempts_ended.add(count, Outcome.EXPIRED.value)
        note_ended(metrics, State.FAILED, FailureReason.EXPIRED.value, count)


def note_cancelled(metrics: Metrics, count: int) -> None:
    """Tasks cancelled before a lease."""
    if count:
        note_ended(metrics, State.CANCELLED, None, count)


def note_ended(metrics: Metrics, state: State | None, reason: str | None, count: int) -> None:
    if state is not None:
        metrics.tasks_ended.add(count, state.value)
    if reason is not None:
        metrics.dead_letters.add(count, reason)
