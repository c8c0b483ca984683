"""What an installation looks like to Prometheus, case by case, and which alerts fire then.

A case changes some series of a healthy installation. Series are written as promtool reads them:
`a+bxn` is a, a+b, a+2b ... for n more minutes.
"""

from dataclasses import dataclass, field

MINUTES = 62
BANDS = ("high", "normal", "low")
BOUNDS = {"high": "1.0", "normal": "5.0", "low": "300.0"}
ROUTE = 'method="POST",route="/v1/tasks"'


def steady(per_minute: float, minutes: int = MINUTES) -> str:
    return f"0+{per_minute:g}x{minutes}"


def constant(value: float, minutes: int = MINUTES) -> str:
    return f"{value:g}x{minutes}"


def then(*parts: tuple[float, int]) -> str:
    """A counter that grows by so much in each of so many minutes, and then otherwise."""
    texts, value = [], 0.0
    for per_minute, minutes in parts:
        texts.append(f"{value:g}+{per_minute:g}x{minutes}")
        value += per_minute * (minutes + 1)
    return " ".join(texts)


def levels(*parts: tuple[float, int]) -> str:
    return " ".join(f"{value:g}x{minutes}" for value, minutes in parts)


def healthy() -> dict[str, str]:
    """600 tasks a minute come, start in time and complete."""
    series = {
        'duly_build_info{version="1"}': constant(1),
        "duly_tasks_submitted_total": steady(600),
        'duly_attempts_ended_total{outcome="completed"}': steady(600),
        'duly_tasks_ended_total{state="COMPLETED"}': steady(600),
        'duly_tasks_ended_total{state="FAILED"}': steady(0),
        'duly_dead_letters_total{reason="exhausted"}': steady(0),
        "duly_leases_lost_total": steady(0),
        'duly_backlog{tenant="(all)",state="ready"}': constant(50),
        'duly_attempt_run_seconds_bucket{le="1.0"}': steady(600),
        'duly_attempt_run_seconds_bucket{le="60.0"}': steady(600),
        'duly_attempt_run_seconds_bucket{le="+Inf"}': steady(600),
        'duly_occurrence_late_seconds_bucket{le="1.0"}': steady(60),
        'duly_occurrence_late_seconds_bucket{le="60.0"}': steady(60),
        'duly_occurrence_late_seconds_bucket{le="+Inf"}': steady(60),
        "duly_schedule_overdue_seconds": constant(0),
        "duly_workflow_overdue_seconds": constant(0),
        "duly_workflow_timers_failing": constant(0),
        'duly_workflows_ended_total{state="COMPLETED"}': steady(20),
        'duly_workflows_ended_total{state="FAILED"}': steady(0),
        'duly_singleton_role_without_leader{role="maintenance"}': constant(0),
        "duly_slots_without_owner": constant(0),
        'duly_role_failing{role="loader",instance="a"}': constant(0),
        'duly_carrier_up{instance="a"}': constant(1),
        'duly_database_waiting{pool="main",instance="a"}': constant(0),
        'duly_breakers_open{kind="host"}': constant(0),
        'duly_pool_ready{tenant="acme",pool="mail"}': constant(5),
        'duly_workers{tenant="acme",pool="mail"}': constant(2),
        f'duly_http_requests_total{{{ROUTE},status="201"}}': steady(600),
        f'duly_http_requests_total{{{ROUTE},status="500"}}': steady(0),
    }
    for band in BANDS:
        series |= {
            f'duly_attempts_started_total{{band="{band}"}}': steady(200),
            f'duly_oldest_ready_seconds{{tenant="(all)",band="{band}"}}': constant(1),
            in_time(band): steady(200),
            f'duly_ready_wait_seconds_bucket{{band="{band}",le="+Inf"}}': steady(200),
            f'duly_ready_wait_seconds_count{{band="{band}"}}': steady(200),
        }
    return series


def in_time(band: str) -> str:
    return f'duly_ready_wait_seconds_bucket{{band="{band}",le="{BOUNDS[band]}"}}'


@dataclass(frozen=True)
class Case:
    """After an hour these alerts fire and no others."""

    name: str
    changes: dict[str, str | None]
    fires: frozenset[str]
    # Of which alert it shows that it holds still; those that fire are shown by that.
    calm: frozenset[str] = field(default_factory=frozenset)

    @property
    def series(self) -> dict[str, str]:
        merged = {**healthy(), **self.changes}
        return {name: values for name, values in merged.items() if values is not None}


def case(
    name: str,
    changes: dict[str, str | None],
    *fires: str,
    calm: tuple[str, ...] = (),
) -> Case:
    return Case(name, changes, frozenset(fires), frozenset(calm))


ENDED = 'duly_attempts_ended_total{outcome="completed"}'
COMPLETED = 'duly_tasks_ended_total{state="COMPLETED"}'
FAILED = 'duly_tasks_ended_total{state="FAILED"}'
LETTERS = 'duly_dead_letters_total{reason="exhausted"}'
READY = 'duly_backlog{tenant="(all)",state="ready"}'
LOST = "duly_leases_lost_total"
LOW_AGE = 'duly_oldest_ready_seconds{tenant="(all)",band="low"}'
LEADER = 'duly_singleton_role_without_leader{role="maintenance"}'
ERRORS = f'duly_http_requests_total{{{ROUTE},status="500"}}'
FAILING = 'duly_role_failing{role="loader",instance="a"}'
CARRIER = 'duly_carrier_up{instance="a"}'
WAITING = 'duly_database_waiting{pool="main",instance="a"}'
BREAKERS = 'duly_breakers_open{kind="host"}'
WORKERS = 'duly_workers{tenant="acme",pool="mail"}'
FAST_RUNS = 'duly_attempt_run_seconds_bucket{le="1.0"}'
FAST_FIRES = 'duly_occurrence_late_seconds_bucket{le="1.0"}'
OVERDUE = "duly_schedule_overdue_seconds"
WORKFLOW_OVERDUE = "duly_workflow_overdue_seconds"
WORKFLOW_FAILING = "duly_workflow_timers_failing"
WORKFLOWS_DONE = 'duly_workflows_ended_total{state="COMPLETED"}'
WORKFLOWS_FAILED = 'duly_workflows_ended_total{state="FAILED"}'
SLOTS = "duly_slots_without_owner"


def late(band: str, share: float) -> dict[str, str | None]:
    return {in_time(band): steady(200 * (1 - share))}


CASES = [
    case("nothing is wrong", {}),
    case("everything stands still", {ENDED: then((600, 40), (0, 200))}, "DulyNothingProcessed"),
    case("it stood still for 4 minutes", {ENDED: then((600, 50), (0, 4), (600, 100))},
         calm=("DulyNothingProcessed",)),
    case("nothing is processed because nothing waits",
         {ENDED: steady(0), READY: constant(0)}, calm=("DulyNothingProcessed",)),
    case("20 dead letters a minute", {LETTERS: steady(20)}, "DulyDeadLetters"),
    case("100 dead letters at once", {LETTERS: then((0, 55), (100, 0), (0, 100))},
         calm=("DulyDeadLetters",)),
    case("runs take a minute", {FAST_RUNS: steady(60)}, "DulyRunTimeHigh"),
    case("runs took a minute for 5 minutes", {FAST_RUNS: then((600, 52), (60, 4), (600, 100))},
         calm=("DulyRunTimeHigh",)),
    case("the backlog grows by 1,000 a minute", {READY: steady(1000)}, "DulyBacklogGrowing"),
    case("a burst of 5,000 tasks", {READY: levels((50, 50), (5000, 2), (50, 100))},
         calm=("DulyBacklogGrowing",)),
    case("more tenants than the counts reach",
         {COMPLETED: steady(10), LOW_AGE: constant(200), READY: constant(10_000)},
         "DulyBacklogGrowing"),
    case("the band low starves", {LOW_AGE: constant(400)}, "DulyPriorityInversion"),
    case("the band low waited for 6 minutes once", {LOW_AGE: levels((1, 55), (360, 1), (1, 100))},
         calm=("DulyPriorityInversion",)),
    case("a pool has no worker", {WORKERS: None}, "DulyPoolWithoutWorkers"),
    case("a pool's workers are replaced",
         {WORKERS: levels((2, 55), (0, 3), (2, 100))}, calm=("DulyPoolWithoutWorkers",)),
    case("a lease is lost each minute", {LOST: steady(1)}, "DulyLeasesRecovered"),
    case("a process died with 5 leases", {LOST: then((0, 57), (5, 0), (0, 100))},
         calm=("DulyLeasesRecovered", "DulyLeaseExpiryRate")),
    case("2 % of leases run out", {LOST: steady(12)}, "DulyLeasesRecovered", "DulyLeaseExpiryRate"),
    case("every tenth task becomes a dead letter",
         {LETTERS: steady(60), COMPLETED: steady(540), FAILED: steady(60)}, "DulyDeadLetterRate",
         "DulyDeadLetters", "DulyFailedTasksFastBurn", "DulyFailedTasksSlowBurn"),
    case("a few dead letters", {LETTERS: steady(1)}, calm=("DulyDeadLetterRate",)),
    case("a breaker stays open", {BREAKERS: constant(1)}, "DulyBreakerOpen"),
    case("a breaker opened for 2 minutes", {BREAKERS: levels((0, 56), (1, 1), (0, 99))},
         calm=("DulyBreakerOpen",)),
    case("schedules fire late", {FAST_FIRES: steady(30)}, "DulyScheduleSkew"),
    case("schedules fired late for 3 minutes", {FAST_FIRES: then((60, 55), (30, 2), (60, 100))},
         calm=("DulyScheduleSkew",)),
    case("an occurrence is missed", {OVERDUE: steady(60)}, "DulyScheduleMissed"),
    case("an occurrence was 50 s late", {OVERDUE: levels((0, 57), (50, 3), (0, 99))},
         calm=("DulyScheduleMissed",)),
    case("a deadline of a workflow is not looked at", {WORKFLOW_OVERDUE: steady(60)},
         "DulyWorkflowsOverdue"),
    case("a workflow waited 50 s for its scheduler",
         {WORKFLOW_OVERDUE: levels((0, 57), (50, 3), (0, 99))}, calm=("DulyWorkflowsOverdue",)),
    case("a step of a workflow fails", {WORKFLOW_FAILING: constant(1)},
         "DulyWorkflowTimersFailing"),
    case("a step of a workflow failed for 5 minutes",
         {WORKFLOW_FAILING: levels((0, 53), (1, 5), (0, 99))}, calm=("DulyWorkflowTimersFailing",)),
    case("every tenth workflow fails", {WORKFLOWS_DONE: steady(18), WORKFLOWS_FAILED: steady(2)},
         "DulyFailedWorkflows"),
    case("three workflows failed in a minute", {WORKFLOWS_FAILED: then((0, 50), (3, 0), (0, 99))},
         calm=("DulyFailedWorkflows",)),
    case("no leader", {LEADER: levels((0, 50), (1, 100))}, "DulyNoMaintenanceLeader"),
    case("the leader changed", {LEADER: levels((0, 58), (1, 0), (0, 100))},
         calm=("DulyNoMaintenanceLeader",)),
    case("slots without owner", {SLOTS: constant(3)}, "DulySlotsWithoutOwner"),
    case("a scheduler was restarted", {SLOTS: levels((0, 58), (64, 0), (0, 100))},
         calm=("DulySlotsWithoutOwner",)),
    case("a role fails", {FAILING: constant(1)}, "DulyRoleFailing"),
    case("a role hiccuped", {FAILING: levels((0, 59), (1, 0), (0, 99))}, calm=("DulyRoleFailing",)),
    case("the carrier is down", {CARRIER: constant(0)}, "DulyCarrierDown"),
    case("the carrier was restarted", {CARRIER: levels((1, 58), (0, 0), (1, 99))},
         calm=("DulyCarrierDown",)),
    case("the pool is used up", {WAITING: constant(4)}, "DulyDatabaseSaturated"),
    case("the pool was used up for a moment", {WAITING: levels((0, 57), (40, 1), (0, 99))},
         calm=("DulyDatabaseSaturated",)),
    case("nothing is scraped", dict.fromkeys(healthy()), "DulyMetricsAbsent",
         "DulyNoMaintenanceLeader", "DulySlotsWithoutOwner"),
    case("a scrape was missed", {'duly_build_info{version="1"}': "1x55 _x3 1x99"},
         calm=("DulyMetricsAbsent",)),
    case("5 % of calls fail", {ERRORS: steady(30)}, "DulyApiErrorsFastBurn",
         "DulyApiErrorsSlowBurn"),
    case("30 calls failed in a minute", {ERRORS: then((0, 50), (30, 0), (0, 9))},
         calm=("DulyApiErrorsFastBurn", "DulyApiErrorsSlowBurn")),
    case("0.2 % of calls fail for days", {ERRORS: steady(1.2)}, "DulyApiErrorsSlowBurn",
         calm=("DulyApiErrorsFastBurn",)),
    case("a tenth of the band high is late", late("high", 0.1), "DulyLateStartsHighFastBurn",
         "DulyLateStartsHighSlowBurn"),
    case("a fifth of the band normal is late", late("normal", 0.2),
         "DulyLateStartsNormalFastBurn", "DulyLateStartsNormalSlowBurn"),
    case("a fifth of the band low is late", late("low", 0.2), "DulyLateStartsLowFastBurn",
         "DulyLateStartsLowSlowBurn"),
    case("one minute of every band was late",
         {in_time(band): then((200, 50), (195, 0), (200, 9)) for band in BANDS},
         calm=tuple(f"DulyLateStarts{band.title()}{speed}Burn" for band in BANDS
                    for speed in ("Fast", "Slow"))),
    case("a fifth of tasks fails", {COMPLETED: steady(480), FAILED: steady(120)},
         "DulyFailedTasksFastBurn", "DulyFailedTasksSlowBurn"),
    case("20 tasks failed in a minute", {FAILED: then((0, 50), (20, 0), (0, 9))},
         calm=("DulyFailedTasksFastBurn", "DulyFailedTasksSlowBurn")),
]  # fmt: skip
