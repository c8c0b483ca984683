"""A failing run told in plain words: numbered lines, seconds, names instead of ids."""

import re
from datetime import datetime, time

from tests.simulation.run import Verdict, tell_story

LINES_MAX = 60
STARTS = re.compile(r"(\S+) starts as ([0-9a-f]{6})")
IDENTITY = re.compile(r"\b([0-9a-f]{6})[0-9a-f]{2}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
INSTANT = re.compile(r"^(\d\d:\d\d:\d\d\.\d{6}) ")
CALL = re.compile(r"#(\d+) (\w+) (\w+)")
PHASES = {
    "invoke": "is asked for",
    "ok": "is answered",
    "fail": "is refused",
    "unknown": "is never answered",
}


def tell(verdict: Verdict) -> list[str]:
    """Who did what when, to the task of the first broken promise; then the promise."""
    task = verdict.violations[0].task if verdict.violations else None
    lines = [line for line in tell_story(verdict, task) if not line.endswith("read_held")]
    names = {short: node for node, short in STARTS.findall("\n".join(verdict.trace))}
    tasks = {} if task is None else {str(task): "the task"}
    told = [in_words(line, names, tasks, verdict) for line in lines[-LINES_MAX:]]
    told += [f"broken: {problem}" for problem in (*verdict.violations[:1], *verdict.failures[:1])]
    return [f"{number}. {line}" for number, line in enumerate(told, start=1)]


def in_words(line: str, nodes: dict[str, str], tasks: dict[str, str], verdict: Verdict) -> str:
    for task, name in tasks.items():
        line = line.replace(f"task={task}", name).replace(task, name)
    line = IDENTITY.sub(lambda found: nodes.get(found[1], f"another ({found[1]})"), line)
    line = CALL.sub(lambda found: f"{found[2]} {PHASES.get(found[3], found[3])},", line)
    line = line.replace("FAULT", "fault:").replace("holder=", "by ").replace("=", " ")
    return INSTANT.sub(lambda found: f"after {seconds(found[1], verdict):.3f} s: ", line)


def seconds(instant: str, verdict: Verdict) -> float:
    """Since the run began; it may begin on the day before."""
    start = verdict.plan.start
    passed = datetime.combine(start.date(), time.fromisoformat(instant), start.tzinfo) - start
    return passed.total_seconds() % 86400.0
