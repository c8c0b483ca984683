"""Forecast endpoint: expected fires per minute in the coming hours."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.request import Answer, Call
from duly.domain.access import PRODUCERS
from duly.domain.forecast import (
    FIRES_MAX,
    MINUTE_S,
    Advice,
    Forecast,
    RuleGroup,
    WorstMinute,
    make_forecast,
)
from duly.domain.recurrence import EPOCH, SECOND
from duly.store.database import Database
from duly.store.forecast import (
    SCHEDULES_MAX,
    TASKS_MAX,
    CountedRules,
    bound_counting,
    count_rules,
    count_waiting,
)
from duly.store.tenants import read_schedule_bound

HOURS_MAX = 48


class ForecastQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hours: Annotated[int, Meta(ge=1, le=HOURS_MAX, description="How far to look ahead.")] = 24


class MinutesView(msgspec.Struct, frozen=True, kw_only=True):
    """A number for each minute from `from` on. Those of schedules are expectations: of many with
    one jitter, each minute within it gets its even share."""

    schedules: list[float]
    tasks: list[int]


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that share a rule; `name` is that of one of them."""

    rule: str
    timezone: str
    jitter_s: float
    schedules: int
    name: str


class ShareView(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    timezone: str
    name: str
    count: float


class WorstView(msgspec.Struct, frozen=True, kw_only=True):
    minute: datetime
    expected: float
    schedules: float
    tasks: int
    top: list[ShareView]


class AdviceView(msgspec.Struct, frozen=True, kw_only=True):
    """With `jitter_s` on the rules (less where the fires of one schedule are closer), no minute
    from this one until the end of the jitter would expect more than `peak_after`."""

    minute: datetime
    jitter_s: int
    peak_before: float
    peak_after: float
    rules: list[RuleView]


class ForecastAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whole minutes, from the next one on. Tasks are counted in the minute in which they are due
    next; what is due already, runs, or is submitted later is not in it. `limits` says what was left
    out because there was too much."""

    since: datetime = msgspec.field(name="from")
    minutes: MinutesView
    worst: list[WorstView]
    advice: list[AdviceView]
    schedules_counted: int
    rules_counted: int
    tasks_counted: int
    limits: list[str]


@dataclass(frozen=True)
class ForecastRoutes:
    database: Database
    # One forecast at a time: its thread shares a processor with the event loop.
    reckoning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/forecast",
                summary="Expected fires per minute, peaks, and the jitter that would spread them",
                handler=self.forecast,
                kind=Kind.HOT,
                access=PRODUCERS,
                query=ForecastQuery,
                answers={200: ForecastAnswer},
                is_bulk=True,
                tag="Schedules",
            )
        ]

    async def forecast(self, call: Call, query: ForecastQuery) -> Answer:
        """Counted in a transaction of the tenant's; reckoned after it, which takes a second that
        neither a connection nor other callers need to wait for."""
        async with self.reckoning:
            async with self.database.tenant(call.tenant) as session:
                _, now = await read_schedule_bound(session, call.tenant)
                first_s = ((now - EPOCH) // SECOND // MINUTE_S + 1) * MINUTE_S
                first_at = EPOCH + timedelta(seconds=first_s)
                end_at = first_at + timedelta(hours=query.hours)
                await bound_counting(session)
                rules = await count_rules(session, call.tenant, first_at, end_at)
                tasks = await count_waiting(session, call.tenant, first_at, end_at)
            forecast = await asyncio.to_thread(make_forecast, rules.groups, tasks, first_s)
        return Answer(200, answer_of(forecast, rules))


def answer_of(forecast: Forecast, rules: CountedRules) -> ForecastAnswer:
    since = EPOCH + timedelta(seconds=forecast.first_s)
    skipped = sum(group.count for group in forecast.skipped)
    reckoned = sum(group.count for group in rules.groups) - skipped
    return ForecastAnswer(
        since=since,
        minutes=MinutesView(
            schedules=[rounded(count) for count in forecast.schedules], tasks=forecast.tasks
        ),
        worst=[worst_view(each, since) for each in forecast.worst],
        advice=[advice_view(each, since) for each in forecast.advice],
        schedules_counted=reckoned,
        rules_counted=len(rules.groups) - len(forecast.skipped),
        tasks_counted=sum(forecast.tasks),
        limits=limits_of(forecast, rules, reckoned),
    )


def limits_of(forecast: Forecast, rules: CountedRules, reckoned: int) -> list[str]:
    """What the numbers do not have in them."""
    found = []
    if rules.schedules >= SCHEDULES_MAX:
        found.append(f"only {SCHEDULES_MAX:,} schedules were looked at")
    beyond = rules.schedules - rules.unreadable - reckoned
    if beyond:
        counted = len(rules.groups) - len(forecast.skipped)
        found.append(
            f"{beyond:,} schedules are left out: {counted:,} of {rules.rules:,} rules are reckoned"
            f" with, those that most schedules share, and at most {FIRES_MAX:,} fires of them"
        )
    if rules.unreadable:
        found.append(
            f"{rules.unreadable:,} schedules are left out: this server does not know their zone"
        )
    if sum(forecast.tasks) >= TASKS_MAX:
        found.append(f"only {TASKS_MAX:,} waiting tasks were counted")
    return found


def worst_view(worst: WorstMinute, since: datetime) -> WorstView:
    return WorstView(
        minute=minute_at(since, worst.minute),
        expected=rounded(worst.expected),
        schedules=rounded(worst.schedules),
        tasks=worst.tasks,
        top=[
            ShareView(
                rule=share.group.rule,
                timezone=share.group.timezone,
                name=share.group.name,
                count=rounded(share.expected),
            )
            for share in worst.top
        ],
    )


def advice_view(advice: Advice, since: datetime) -> AdviceView:
    return AdviceView(
        minute=minute_at(since, advice.minute),
        jitter_s=advice.jitter_s,
        peak_before=rounded(advice.peak_before),
        peak_after=rounded(advice.peak_after),
        rules=rule_views(advice.groups),
    )


def rule_views(groups: Sequence[RuleGroup]) -> list[RuleView]:
    return [
        RuleView(
            rule=group.rule,
            timezone=group.timezone,
            jitter_s=group.jitter_s,
            schedules=group.count,
            name=group.name,
        )
        for group in groups
    ]


def minute_at(since: datetime, minute: int) -> datetime:
    return since + timedelta(minutes=minute)


def rounded(count: float) -> float:
    return round(count, 3)
