"""Whether a payload is what its task type takes, judged here as the server judges it."""

from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs

PROBLEMS_MAX = 20
COMPILED_MAX = 100


def payload_problems(schema: str, payload: Any) -> list[dict[str, str]]:
    """Each with a JSON pointer into the request; none for a payload that fits."""
    validator = compiled(schema)
    if validator.is_valid(payload):
        return []
    problems = []
    for error in validator.iter_errors(payload):
        pointer = "".join(f"/{step}" for step in error.instance_path)
        problems.append({"pointer": f"/payload{pointer}", "detail": error.message[:300]})
        if len(problems) == PROBLEMS_MAX:
            break
    return problems


@lru_cache(maxsize=COMPILED_MAX)
def compiled(schema: str) -> Any:
    """Linear-time patterns, and no reference ever leaves the document."""
    return jsonschema_rs.validator_for(
        schema, retriever=refuse_reference, pattern_options=jsonschema_rs.RegexOptions()
    )


def refuse_reference(address: str) -> NoReturn:
    raise ValueError(f"a schema may refer only to itself, not to {address[:100]}")
