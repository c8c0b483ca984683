"""Whether schedules fire once (I6): one verdict for each nominal instant, and one task at most.

Pure; `check.py` runs this with the other invariants. What should have fired at all is told by an
independent model, where a harness has one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

from duly.domain.occurrence_plan import FIRING, OccurrenceDecision
from duly.verify.history import Evidence, Finding

Nominal = tuple[UUID, datetime]


def occurrences_fire_once(evidence: Evidence) -> Iterator[Finding]:
    """The ledger has each occurrence once, and tasks and ledger name each other."""
    verdicts: Counter[Nominal] = Counter()
    named: dict[Nominal, set[UUID]] = defaultdict(set)
    for row in evidence.occurrences:
        nominal = (row.schedule, row.nominal_at)
        verdicts[nominal] += 1
        if row.task is not None:
            named[nominal].add(row.task)
        if (row.verdict in FIRING) != (row.task is not None):
            yield row.task, f"{worded(nominal)} is {row.verdict}, with task {row.task}"
        elif row.task is not None:
            yield from unlike_its_task(evidence, nominal, row.task)
    for nominal, times in verdicts.items():
        if times > 1:
            yield None, f"{worded(nominal)} has {times} verdicts"
    yield from unledgered(evidence, named)
    if evidence.expected is not None:
        for nominal in sorted(evidence.expected - verdicts.keys(), key=str):
            yield None, f"{worded(nominal)} has no verdict"
        manual = {
            (row.schedule, row.nominal_at)
            for row in evidence.occurrences
            if row.verdict == OccurrenceDecision.TRIGGERED
        }
        for nominal in sorted(verdicts.keys() - evidence.expected - manual, key=str):
            yield None, f"{worded(nominal)} has a verdict, and was not to be expected"


def unlike_its_task(evidence: Evidence, nominal: Nominal, task: UUID) -> Iterator[Finding]:
    stored = evidence.tasks.get(task)
    if evidence.is_missing(task):
        yield task, f"{worded(nominal)} fired, and its task is not stored"
    elif stored and stored.occurrence != nominal and task not in evidence.tombstones:
        yield task, f"{worded(nominal)} fired as a task that was made for something else"


def unledgered(evidence: Evidence, named: dict[Nominal, set[UUID]]) -> Iterator[Finding]:
    """Tasks that say they are an occurrence which the ledger gives to another, or to none."""
    made: dict[Nominal, set[UUID]] = defaultdict(set)
    for task in evidence.tasks.values():
        if task.occurrence is None:
            continue
        made[task.occurrence].add(task.id)
        if task.id not in named.get(task.occurrence, ()):
            yield task.id, f"was made for {worded(task.occurrence)}, which the ledger does not say"
    for nominal in made.keys() | named.keys():
        tasks = made[nominal] | named.get(nominal, set())
        if len(tasks) > 1:
            example = min(tasks, key=lambda task: task.int)
            yield example, f"{worded(nominal)} became {len(tasks)} tasks"


def worded(nominal: Nominal) -> str:
    schedule, nominal_at = nominal
    return f"occurrence {nominal_at.isoformat()} of schedule {schedule}"
