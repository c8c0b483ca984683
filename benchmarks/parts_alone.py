"""Single parts of the engine: the timing wheel, the next instant of a cron expression."""

import resource
from datetime import timedelta
from uuid import UUID

from duly.bench.figures import Figures, Meter
from duly.bench.stage import TENANT, ScenarioContext
from duly.domain.recurrence import Recurrence, next_occurrences
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.scheduler.ready_state import ReadyState
from duly.store.load import DueTimer, TimerQueue

WHEEL_SPAN_S = 10.0
ZONE = "Europe/Berlin"
YEAR = timedelta(days=365)
# A daily one, one by office hours, the end of the month, a rhythm, and one with seconds.
EXPRESSIONS = (
    "30 2 * * *",
    "*/15 9-17 * * MON-FRI",
    "0 0 L * *",
    "*/5 * * * *",
    "20 0 6 * * *",
)


async def run_wheel(stage: ScenarioContext) -> Figures:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now, random = stage.environment.clock.now(), stage.environment.random
    ready_state, timer_queue = ReadyState(now.timestamp()), TimerQueue(TENANT, 632, 2)
    meter = Meter(stage.environment.clock)
    for _ in range(stage.tasks):
        fires_at = now + timedelta(seconds=random.random() * WHEEL_SPAN_S)
        task_id = UUID(int=random.getrandbits(128))
        due = DueTimer(*timer_queue, task_id, 0, fires_at, 5, None, "bench", None, None, None)
        ready_state.add((due,), timer_queue, now.timestamp())
    meter.add(stage.tasks)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    return {"tasks_per_s": meter.rate, "memory_mb": grown_kb / 1024}


async def run_next_fires(stage: ScenarioContext) -> Figures:
    """The slowest expression is the figure."""
    rates = {}
    for number, text in enumerate(EXPRESSIONS):
        rates[text] = next_fires_per_s(stage, text, stage.tasks // len(EXPRESSIONS))
        stage.show(number + 1, len(EXPRESSIONS))
    return {"tasks_per_s": min(rates.values()), "by_expression": rates}


def next_fires_per_s(stage: ScenarioContext, text: str, count: int) -> float:
    """After instants at random over a year: every schedule is somewhere else."""
    now, random = stage.environment.clock.now(), stage.environment.random
    recurrence = read_recurrence(RecurrenceFields(cron=text, timezone=ZONE), now)
    assert isinstance(recurrence, Recurrence)
    instants = [now + YEAR * random.random() for _ in range(count)]
    meter = Meter(stage.environment.clock)
    for after in instants:
        next_occurrences(recurrence, after, 1)
    meter.add(count)
    return meter.rate
