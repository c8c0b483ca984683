"""What a tenant says of its task types, at the moment of a submit: may this key, is the payload
as the schema says, which defaults apply. Compiled once and kept for a moment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from duly.api.problems import Code, Refused
from duly.api.recall import Recall
from duly.api.wire import NO_DEFAULTS, TaskDefaults, TaskRequest
from duly.domain.access import Credential
from duly.domain.addresses import STRICT, OutboundRules
from duly.domain.limits import Problem
from duly.environment import Environment
from duly.store.database import Database, Session
from duly.store.task_types import find_task_type

PROBLEMS_MAX = 20
Validate = Callable[[Any], list[Problem]]


@dataclass(frozen=True)
class Rules:
    """Of one task type; the empty ones for a type that nobody described."""

    validate: Validate | None = None
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
        # Where this installation lets webhooks go; asked again by whoever sends them.
        self.outbound = outbound
        self.known: Recall[tuple[int, str], Rules] = Recall(environment.clock, self.look)

    async def look(self, name: tuple[int, str]) -> Rules:
        return await read_rules(self.database, *name)

    async def check(self, credential: Credential, tenant: int, task: TaskRequest) -> TaskDefaults:
        """The defaults for this task; Refused if it may not be submitted as it stands."""
        rules = await self.known.get((tenant, task.type))
        permit(rules, credential, task.type)
        if problems := payload_problems(rules, task):
            raise Refused(Code.INVALID, f"the payload is not what {task.type} takes", problems)
        return rules.defaults


async def read_rules(session: Session, tenant: int, task_type: str) -> Rules:
    """As they stand in the database; a call that holds a transaction asks there."""
    found = await find_task_type(session, tenant, task_type)
    if found is None:
        return NO_RULES
    return Rules(
        validate=None if found.schema is None else compile_schema(found.schema),
        defaults=NO_DEFAULTS
        if found.defaults is None
        else msgspec.json.decode(found.defaults, type=TaskDefaults),
        keys=None if found.keys is None else frozenset(found.keys),
    )


def permit(rules: Rules, credential: Credential, task_type: str) -> None:
    """Refused if this credential may not submit tasks of the type."""
    if credential.types is not None and task_type not in credential.types:
        raise forbidden(task_type)
    if rules.keys is not None and credential.key_id not in rules.keys:
        raise forbidden(task_type)


def payload_problems(rules: Rules, task: TaskRequest) -> list[Problem]:
    return [] if rules.validate is None else rules.validate(msgspec.json.decode(task.payload))


def forbidden(task_type: str) -> Refused:
    return Refused(Code.FORBIDDEN, f"this credential may not submit {task_type}")


def compile_schema(text: str) -> Validate:
    """Linear-time patterns, and no reference ever leaves the document."""
    validator = jsonschema_rs.validator_for(
        text,
        retriever=refuse_reference,
        pattern_options=jsonschema_rs.RegexOptions(),
    )

    def validate(payload: Any) -> list[Problem]:
        if validator.is_valid(payload):
            return []
        problems = []
        for error in validator.iter_errors(payload):
            pointer = "".join(f"/{step}" for step in error.instance_path)
            problems.append(Problem(f"/payload{pointer}", error.message[:300]))
            if len(problems) == PROBLEMS_MAX:
                break
        return problems

    return validate


def refuse_reference(address: str) -> NoReturn:
    raise ValueError(f"a schema may refer only to itself, not to {address[:100]}")
