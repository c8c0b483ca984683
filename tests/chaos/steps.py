"""Random nodes of workflows that do more than run a task, as bodies of the API: `if`, waits, maps.
What they are is drawn as for simulated fleets (`tests/simulation/step_clients.py`)."""

from typing import Any

from tests.simulation.step_model import Condition, Step, WantedMap, WantedWait


def with_step(node: dict[str, Any], step: Step) -> dict[str, Any]:
    """The node as it is sent, from what its task would be."""
    sent = dict(node)
    if step.wait is not None:
        kept = ("after", "when", "delay_s")
        sent = {name: node[name] for name in kept} | {"wait": wait_body(step.wait)}
    elif step.map is not None:
        sent["map"] = map_body(step.map)
        if step.map.is_paged:
            del sent["when"], sent["delay_s"]
    if step.condition is not None:
        sent["if"] = condition_body(step.condition)
    return sent


def wait_body(wait: WantedWait) -> dict[str, Any]:
    if wait.signal is None:
        return {"delay_s": wait.time_s}
    return {
        "signal": wait.signal,
        "role": wait.role,
        "timeout_s": wait.time_s,
        "on_timeout": wait.on_timeout,
    }


def map_body(wanted: WantedMap) -> dict[str, Any]:
    over: Any = "pages"
    if wanted.numbers is not None:
        over = {"count": wanted.numbers}
    elif not wanted.is_paged:
        over = {"node": f"n{wanted.source}", "path": "/items"}
    body: dict[str, Any] = {"over": over, "max_items": wanted.max_items}
    if wanted.max_parallel is not None:
        body["max_parallel"] = wanted.max_parallel
    if wanted.tolerated is not None:
        body["tolerate"] = {"count": wanted.tolerated}
    elif wanted.tolerated_percent is not None:
        body["tolerate"] = {"percent": wanted.tolerated_percent}
    return body


def condition_body(condition: Condition) -> dict[str, Any]:
    asked: dict[str, Any] = {"node": f"n{condition.parent}"}
    if condition.state is not None:
        return asked | {"of": "state", "eq": condition.state}
    return asked | {"path": "/answer", "gt": condition.above}
