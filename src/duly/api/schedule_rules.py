"""Validation of schedule definitions: a definition that may be stored, or all its problems.

The template is held against the rules of `POST /v1/tasks`; what is read, is read in the transaction
of the call.
"""

from datetime import datetime
from typing import NamedTuple

from duly.api.problems import invalid
from duly.api.request import Call
from duly.api.schedule_wire import ScheduleFields, ScheduleRequest, encode_task, encode_workflow
from duly.api.task_rules import callback_problems, judge, permit, read_rules
from duly.api.tasks import target_problems
from duly.api.wire import TaskRequest
from duly.domain.addresses import OutboundRules
from duly.domain.limits import (
    SCHEDULE_NAME_PATTERN,
    Problem,
    pattern_reason,
    problems,
    submission_problems,
)
from duly.domain.recurrence import Recurrence, next_occurrences
from duly.domain.recurrence_fields import RecurrenceFields, closest_fires_s, read_recurrence
from duly.store.schedules import Definition
from duly.store.templates import ScheduledWorkflow, Template, template_of

NEITHER = Problem("/task", "is required, or /workflow instead")
BOTH = Problem("/workflow", "does not go with /task")
ONE_TASK = "belongs to one task; a schedule says when"
OF_ONE_TASK = (
    "run_at",
    "delay_s",
    "start_by",
    "idempotency_key",
    "unique",
    "debounce",
    "throttle",
)


class CheckedSchedule(NamedTuple):
    definition: Definition
    recurrence: Recurrence


class ScheduleContext(NamedTuple):
    """What a definition is validated against. An interval without a start counts from `anchor_at`.
    `known` fields are stored already: they are not refused for a limit that changed since."""

    now: datetime
    schedule_s_min: int
    anchor_at: datetime
    known: RecurrenceFields | None = None
    # The workflow that is stored already.
    scheduled: ScheduledWorkflow | None = None


async def check_schedule(
    call: Call, asked: ScheduleRequest, context: ScheduleContext, outbound: OutboundRules
) -> CheckedSchedule:
    """Validate a definition; ApiProblem with all its problems at once."""
    recurrence, found = check_recurrence(asked, context)
    found += name_problems(asked.name)
    template: Template | ScheduledWorkflow
    if asked.task is not None and asked.workflow is None:
        template, wrong = await check_task(call, asked, asked.task, context.now, outbound)
        found += wrong
        text = encode_task(asked.task)
    elif asked.task is None and asked.workflow is not None:
        # Checked before the call held a connection; what did not change was checked before.
        prepared = call.prepared or context.scheduled
        assert isinstance(prepared, ScheduledWorkflow)
        template, text = prepared, encode_workflow(asked.workflow)
    else:
        raise invalid([*found, NEITHER if asked.task is None else BOTH])
    if found or recurrence is None:
        raise invalid(found)
    definition = Definition(
        name=asked.name,
        fields=asked.recurrence_fields(),
        policies=asked.policies(),
        jitter_s=asked.jitter_s,
        task=text,
        template=template,
    )
    return CheckedSchedule(definition, recurrence)


def name_problems(name: str) -> list[Problem]:
    return problems([("/name", pattern_reason(name, SCHEDULE_NAME_PATTERN))])


def check_recurrence(
    asked: ScheduleFields, context: ScheduleContext
) -> tuple[Recurrence | None, list[Problem]]:
    fields = asked.recurrence_fields()
    found = []
    if asked.max_running is not None and asked.overlap != "allow":
        found.append(Problem("/max_running", "is for overlap allow"))
    recurrence = read_recurrence(fields, context.anchor_at)
    if not isinstance(recurrence, Recurrence):
        return None, recurrence + found
    closest_s = closest_fires_s(recurrence)
    if asked.jitter_s >= closest_s:
        found.append(Problem("/jitter_s", f"must be less than {closest_s} s, the closest fires"))
    if fields != context.known:
        found += rule_problems(asked, recurrence, context)
    return recurrence, found


def rule_problems(
    asked: ScheduleFields, recurrence: Recurrence, context: ScheduleContext
) -> list[Problem]:
    """A rule that fires too often, or never again."""
    rule = "/cron" if asked.cron is not None else "/every_s"
    least_s, closest_s = context.schedule_s_min, closest_fires_s(recurrence)
    found = []
    if closest_s < least_s:
        reason = f"fires {closest_s} s apart, and {least_s} s is the least for this tenant"
        found.append(Problem(rule, reason))
    if not next_occurrences(recurrence, context.now, 1):
        if asked.end_at is None:
            found.append(Problem(rule, "never fires"))
        else:
            found.append(Problem("/end_at", "nothing would fire before it"))
    return found


async def check_task(
    call: Call, asked: ScheduleFields, task: TaskRequest, now: datetime, outbound: OutboundRules
) -> tuple[Template, list[Problem]]:
    """The template, and what is wrong with it by itself and beside the rest of the definition."""
    template, wrong = await check_template(call, task, now, outbound)
    found = [Problem(f"/task{each.pointer}", each.reason) for each in wrong]
    if asked.overlap == "queue_one" and task.concurrency_key is not None:
        reason = "cannot stand beside overlap queue_one, which makes its tasks wait by a key"
        found.append(Problem("/task/concurrency_key", reason))
    return template, found


async def check_template(
    call: Call, task: TaskRequest, now: datetime, outbound: OutboundRules
) -> tuple[Template, list[Problem]]:
    rules = await read_rules(call.session, call.tenant, task.type)
    permit(rules, call.credential, task.type)
    found = [
        Problem(f"/{name}", ONE_TASK) for name in OF_ONE_TASK if getattr(task, name) is not None
    ]
    # Its own time is refused above, and must not be called wrong for another reason as well.
    submission = task.submission(call.tenant, defaults=rules.defaults)
    named = {problem.pointer for problem in found}
    found += [
        problem
        for problem in submission_problems(submission, now, outbound)
        if problem.pointer not in named
    ]
    found += target_problems(task)
    if task.callback is not None:
        told = await read_rules(call.session, call.tenant, task.callback.type)
        found += callback_problems(told, call.credential, task.callback, outbound)
    # What only a process can tell was told before the call held a connection.
    if isinstance(problem := judge(rules, task), Problem):
        found.append(problem)
    return template_of(submission), found
