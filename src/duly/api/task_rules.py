"""Task type rules at submit: permission of the key, payload schema, defaults. Compiled once and
cached for a short time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from duly.api.problems import ApiProblem, Code, invalid, sentence_of
from duly.api.schema_checks import SchemaChecks
from duly.api.wire import EARLIEST, NO_DEFAULTS, CallbackRequest, TaskDefaults, TaskRequest
from duly.domain.access import Credential
from duly.domain.addresses import STRICT, OutboundRules
from duly.domain.limits import PAYLOAD_BYTES_MAX, Problem, submission_problems
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.store.database import Database, Session
from duly.store.task_types import find_task_type
from duly.ttl_cache import TtlCache
from duly.validation.schema import INLINE_COST_MAX, PayloadSchema, read_schema

# Each may hold a schema of 64 KiB.
RULES_MAX = 1000
# Tasks of a batch that are looked at before other callers get their turn.
SLICE_COST_MAX = INLINE_COST_MAX


@dataclass(frozen=True)
class Rules:
    """Rules of one task type; empty for a type without a description."""

    schema: str | None = None
    defaults: TaskDefaults = NO_DEFAULTS
    keys: frozenset[str] | None = None


NO_RULES = Rules()


class TaskRules:
    def __init__(
        self,
        database: Database,
        environment: Environment,
        outbound: OutboundRules = STRICT,
    ) -> None:
        self.database = database
        # Allowed webhook destinations of this installation; the webhook sender checks them again.
        self.outbound = outbound
        self.known: TtlCache[tuple[int, str], Rules] = TtlCache(
            environment.clock, self.look, RULES_MAX
        )
        self.checks = SchemaChecks(environment.clock)

    async def look(self, name: tuple[int, str]) -> Rules:
        return await read_rules(self.database, *name)

    async def check(self, credential: Credential, tenant: int, task: TaskRequest) -> TaskDefaults:
        """The defaults for this task; ApiProblem if it may not be submitted as it stands."""
        rules = await self.known.get((tenant, task.type))
        permit(rules, credential, task.type)
        if rules.schema is not None:
            problem = await self.payload_problem(tenant, rules, task)
            if problem is not None:
                raise ApiProblem(
                    Code.INVALID,
                    f"the payload does not fit {task.type}: {sentence_of(problem)}",
                    [problem],
                )
        return rules.defaults

    async def callback_problems(
        self, credential: Credential, tenant: int, callback: CallbackRequest | None
    ) -> list[Problem]:
        """What is wrong with what tells of an end; ApiProblem if its type may not be submitted."""
        if callback is None:
            return []
        rules = await self.known.get((tenant, callback.type))
        return callback_problems(rules, credential, callback, self.outbound)

    async def payload_problem(self, tenant: int, rules: Rules, task: TaskRequest) -> Problem | None:
        found = judge(rules, task)
        if isinstance(found, PayloadSchema):
            (found,) = await self.checks.problems(tenant, found.text, [bytes(task.payload)])
        return found

    async def check_costly(self, tenant: int, task: TaskRequest) -> None:
        """Check a template's payload where that needs the check process; ApiProblem if it does not
        fit."""
        rules = await self.known.get((tenant, task.type))
        if not isinstance(judge(rules, task), PayloadSchema):
            return
        problem = await self.payload_problem(tenant, rules, task)
        if problem is not None:
            raise invalid([Problem(f"/task{problem.pointer}", problem.reason)])

    async def check_all(
        self, credential: Credential, tenant: int, tasks: Sequence[TaskRequest]
    ) -> list[TaskDefaults | Problem]:
        """`check` of many: the costly payloads of a type travel to their process together."""
        answers: list[TaskDefaults | Problem] = []
        costly: dict[str, list[int]] = {}
        cost = 0
        for ordinal, task in enumerate(tasks):
            rules = await self.known.get((tenant, task.type))
            permit(rules, credential, task.type)
            found = judge(rules, task)
            if isinstance(found, PayloadSchema):
                costly.setdefault(found.text, []).append(ordinal)
                found = None
            answers.append(rules.defaults if found is None else found)
            if rules.schema is not None:
                cost += read_schema(rules.schema).cost(len(task.payload))
            if cost > SLICE_COST_MAX:
                await asyncio.sleep(0)
                cost = 0
        for text, ordinals in costly.items():
            payloads = [bytes(tasks[ordinal].payload) for ordinal in ordinals]
            problems = await self.checks.problems(tenant, text, payloads)
            for ordinal, problem in zip(ordinals, problems, strict=True):
                if problem is not None:
                    answers[ordinal] = problem
        return answers

    async def close(self) -> None:
        await self.checks.close()
        await self.known.close()


async def read_rules(session: Session, tenant: int, task_type: str) -> Rules:
    """As they stand in the database; a call that holds a transaction asks there."""
    found = await find_task_type(session, tenant, task_type)
    if found is None:
        return NO_RULES
    return Rules(
        schema=found.schema,
        defaults=NO_DEFAULTS
        if found.defaults is None
        else msgspec.json.decode(found.defaults, type=TaskDefaults),
        keys=None if found.keys is None else frozenset(found.keys),
    )


def permit(rules: Rules, credential: Credential, task_type: str) -> None:
    """ApiProblem if this credential may not submit tasks of the type."""
    permit_type(credential, task_type)
    if rules.keys is not None and credential.key_id not in rules.keys:
        detail = f"this credential may not submit {task_type}: the type lists the keys that may"
        raise ApiProblem(Code.FORBIDDEN, detail)


def permit_type(credential: Credential, task_type: str) -> None:
    """ApiProblem if the credential is limited to other task types. For every change of what belongs
    to a type: its tasks, dead letters, schedules, pauses and its description."""
    if credential.types is not None and task_type not in credential.types:
        detail = f"this credential is limited to other task types than {task_type}"
        raise ApiProblem(Code.FORBIDDEN, detail)


def permit_filter(credential: Credential, task_type: str | None) -> None:
    """A filter of a limited credential must name the type: left out, it would mean all of them."""
    if task_type is not None:
        permit_type(credential, task_type)
    elif credential.types is not None:
        detail = "this credential is limited to task types; give one of them in filter.type"
        raise ApiProblem(Code.FORBIDDEN, detail, [Problem("/filter/type", "is required")])


def callback_problems(
    rules: Rules, credential: Credential, callback: CallbackRequest, outbound: OutboundRules
) -> list[Problem]:
    permit(rules, credential, callback.type)
    target = callback.target
    probe = Submission(0, callback.type, url=target.url, policy=Policy(headers=target.headers))
    # It has no instant of its own.
    found = submission_problems(probe, EARLIEST, outbound)
    if (target.url is None) == (target.pool is None):
        found.append(Problem("/target", "is a url or a pool"))
    if target.url is None and target.headers:
        found.append(Problem("/target/headers", "belong to a url"))
    return [Problem(f"/callback{each.pointer}", each.reason) for each in found]


def judge(rules: Rules, task: TaskRequest) -> Problem | PayloadSchema | None:
    """What is wrong with the payload, or the schema if only a process of its own can tell."""
    if rules.schema is None:
        return None
    found = read_schema(rules.schema).judge(task.payload)
    # One that is too long is refused for that, and nothing is run on it.
    return None if found is None or len(task.payload) > PAYLOAD_BYTES_MAX else found
