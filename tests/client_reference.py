"""The reference of the Python client, made from its signatures and docstrings: `python -m
tests.client_reference` writes it to docs/reference/client.md, and a test fails when it is stale.

What is public and says nothing about itself is refused here, not left out.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import duly
from duly.api.problems import STATUS
from duly.client import (
    errors,
    http_pool,
    inbox,
    inline_mode,
    namespaces,
    receiver,
    submits,
    wire,
    worker,
)
from duly.client.context import Context, Flag
from duly.client.operations import listing, operation
from duly.client.request import (
    RESOURCES,
    NodeOptions,
    ScheduleOptions,
    SubmitOptions,
    WorkflowOptions,
)
from duly.client.task import Attempt, TaskData
from duly.client.views import WorkflowData
from duly.client.workflow_builder import GraphBuilder
from duly.client.workflow_nodes import FlowNode
from duly.client.workflow_results import NodeResult, SignalResult
from duly.domain import limits
from duly.domain.errors import ConfigurationError, DulyError
from duly.testing import inline, plugin
from duly.testing.clock import MovableClock
from duly.testing.server import DulyServer, TestTenant

REFERENCE = Path(__file__).parent.parent / "docs" / "reference" / "client.md"
HEADER = """# The Python client

Everything that a program uses of `duly`, made from the code by `python -m tests.client_reference`.
How to use it: [the tutorial](../tutorial.md), [write a worker](../how-to/write-a-worker.md),
[test your tasks](../how-to/test-your-tasks.md). Instants are aware datetimes, durations seconds.

Over HTTPS the server's certificate is verified. For an authority of your own, name its file in the
environment variable `SSL_CERT_FILE`; the command line goes by it too.
"""
SUBMITTING = f"""## Retries, batches and timeouts

A call that meets a fault of the network, 429 or 503 is sent again, up to `tries` times
({wire.TRIES_MAX} by default), after a pause that grows from {wire.PAUSE_FIRST_S:g} s to
{wire.PAUSE_MAX_S:g} s, half of it by chance, or after what the server asked for; a `Retry-After`
above {wire.RETRY_AFTER_MAX_S:g} s is raised instead. Every write carries an idempotency key, so it
has one effect however often it is sent. When all tries are used up, the outcome of a write is
unknown: submit again with the same `idempotency_key` to find out. Other refusals, and a certificate
that is not trusted, are raised at once.

Submits of many callers share calls behind the scenes: what arrives while a call is on its way forms
the next batch. A single caller never waits for a batch to fill, answers come after the commit, and
a task that is refused does not fail its neighbours.
"""
AWAITED = """### duly.AsyncClient

The same methods, to be awaited; `tasks`, `search` and `logs` are async iterators. Use it with
`async with`.
"""
REFUSALS = """## Errors

All are in `duly`, and `duly.DulyError` is the base of all. An ApiError has `status`, `code`,
`detail`, `errors`, `retry_after_s`.
"""
TESTING = """## duly.testing

`pytest_plugins = ["duly.testing.plugin"]` gives these fixtures:
"""
# The work behind the methods; of no use to a program.
INNER = {
    namespaces.AsyncSchedules: {"planned"},
    duly.Client: {"items_of", "run", "running_loop", "start_anew", "task_from"},
    duly.AsyncClient: {"found_pages", "log_pages", "pages", "send", "task_from", "task_pages"},
    duly.Task: {"client", "typed"},
    duly.AsyncTask: {"client", "typed"},
    duly.Workflow: {"client", "renewed"},
    duly.AsyncWorkflow: {"client", "renewed"},
    GraphBuilder: {"add_chain", "add_group", "add_node", "add_step", "body", "check_open", "fields"}
    | {"free_name", "key", "known", "number_of", "parent_name", "place"},
    duly.TaskRegistry: {"default_pool", "resources", "scheduled"},
    duly.Worker: {"default_pool", "middleware", "on_signal", "plan", "serve_until_signal"},
    inline_mode.InlineMode: {"answer", "asubmit", "made", "run", "run_attempt", "run_attempts"}
    | {"stored", "submit"},
    DulyServer: {"live", "serve", "move_clock", "move_clock_here", "wake_here", "make_tenant_here"}
    | {"run", "wake"},
    MovableClock: {"jump"},
    Flag: {"set"},
    NodeResult: {"pointer", "subject"},
}
# An error's docstring is its message; when it is raised stands here.
WHEN: dict[type[DulyError], str] = {
    errors.ServerNotFound: "neither arguments nor environment name a duly, and none runs here",
    errors.Unreachable: "no sensible answer in any try; the outcome of a write is unknown",
    errors.WaitTimedOut: "`wait` with `timeout_s`, and the task had not ended by then",
    errors.InvalidWorkflow: "the graph of a workflow is wrong; nothing was sent",
    errors.WorkflowTimedOut: "`wait` of a workflow with `timeout_s`, and it had not ended by then",
    errors.InvalidPayload: "an argument of a handle does not fit the handler's annotation",
    errors.TaskFailed: "`result()` of a task that failed; `task` has the whole of it",
    errors.TaskCancelled: "`result()` of a task that was cancelled",
    errors.InvalidResult: "`result()` is not what the handler's annotation says",
    errors.ApiError: "a refusal with a status that has no class of its own; the base of the others",
    errors.Invalid: "the request is wrong; `errors` points at what",
    errors.Unauthenticated: "the key is missing, wrong, expired or revoked",
    errors.Forbidden: "the key may not do this",
    errors.NotFound: "what was asked for was not found; `detail` names it",
    errors.Conflict: "the thing is not in a state in which this can be done",
    errors.IdempotencyMismatch: "the idempotency key was used with another request",
    errors.RateLimited: "too fast, or over a quota, in every try; `retry_after_s` says how long",
    errors.Unavailable: "the server cannot answer now, in every try",
    receiver.WebhookRefused: "`duly.receiver.verify`: not signed by duly, too old, or malformed",
    inbox.NoTransaction: "`once` outside of a transaction",
    inbox.StaleFence: "`once(..., fenced=True)`: a later attempt was seen; this one is over",
    inbox.FirstNotAsked: "the block of a `once` never looked whether it is the first time",
    ConfigurationError: "what a program says of duly cannot be: a name, a flag, a setting",
}
LIMITS: tuple[tuple[str, float], ...] = (
    ("payload, bytes of JSON", limits.PAYLOAD_BYTES_MAX),
    ("result, bytes of JSON", limits.RESULT_BYTES_MAX),
    ("error text, bytes", limits.ERROR_BYTES_MAX),
    ("progress, bytes of JSON", limits.PROGRESS_BYTES_MAX),
    ("idempotency key and concurrency key, characters", limits.KEY_CHARACTERS_MAX),
    ("tags of a task", limits.TAGS_MAX),
    ("attempts of a task", limits.MAX_ATTEMPTS_MAX),
    ("delay, seconds", limits.DELAY_S_MAX),
    ("time limit of an attempt, seconds", limits.TIMEOUT_S_MAX),
    ("lease of a worker, seconds", limits.LEASE_S_MAX),
    ("concurrency of a worker", worker.CONCURRENCY_MAX),
    ("pools of a worker", worker.POOLS_MAX),
    ("connections of a client", http_pool.CONNECTIONS_MAX),
    ("seconds of one try, if `timeout_s` does not say otherwise", wire.TIMEOUT_S),
    ("seconds of one long poll of `wait`, which makes as many as it needs", wire.WAIT_S_MAX),
    ("submits that share a call", submits.BATCH_MAX),
    ("bytes of submits that share a call", submits.BATCH_BYTES_MAX),
    ("calls with submits on their way", submits.FLIGHTS_MAX),
    ("submits that wait in a client, after which `submit` waits for room", submits.WAITING_MAX),
)


def make_reference() -> str:
    return "\n".join(
        [
            HEADER,
            *section("duly.Client", duly.Client),
            AWAITED,
            *resources(),
            "### Options of a submit\n",
            table(("option", "meaning"), option_rows(SubmitOptions)),
            *section("duly.Task and duly.AsyncTask", duly.Task),
            "Its facts: "
            + ", ".join(f"`{name}`" for name in TaskData.__struct_fields__)
            + ", `is_terminal`. Of an attempt: "
            + ", ".join(f"`{name}`" for name in Attempt.__struct_fields__)
            + ".\n",
            *workflows(),
            SUBMITTING,
            REFUSALS,
            table(("error", "status and codes", "when"), error_rows()),
            *section("duly.TaskRegistry", duly.TaskRegistry),
            *section("duly.TaskHandle", duly.TaskHandle),
            *section("duly.Worker", duly.Worker, "All of `duly.TaskRegistry`, and:"),
            "## Resources\n",
            table(
                ("function", "what it does"),
                [
                    (f"`duly.{each.__name__}{signature(each)}`", described(each, each.__name__))
                    for each in (duly.resource, duly.inject)
                ],
            ),
            *section("duly.Context", Context, "What a handler is given first, as `ctx`."),
            *section("ctx.cancelled", Flag),
            "### Exceptions of a handler\n",
            table(("exception", "meaning"), [handler_row(e) for e in (duly.Reject, duly.Retry)]),
            "Any other exception is a failed attempt, retried as the task's policy says.\n",
            TESTING,
            table(("fixture", "what it is"), fixture_rows()),
            *section("DulyServer", DulyServer, level="###"),
            *section("TestTenant", TestTenant, level="###"),
            *section("MovableClock", MovableClock, level="###"),
            *section("run_inline", inline.Inline, level="###"),
            *section("Ran", inline_mode.Ran, level="###"),
            table(("error of run_inline", "message"), inline_error_rows(inline)),
            "### Without a server\n",
            "`with worker.inline() as inline:` needs no server and no fixture.\n",
            *section("worker.inline()", inline_mode.InlineMode, level="####"),
            table(("error of worker.inline()", "message"), inline_error_rows(inline_mode)),
            "## Limits\n",
            table(
                ("at most", "value"),
                [
                    (name, f"{value:,g}" if value < 1e6 else f"{value:,.0f}")
                    for name, value in LIMITS
                ],
            ),
        ]
    )


def section(title: str, kind: type, said: str = "", level: str = "##") -> Iterator[str]:
    yield f"{level} {title}\n\n{said + chr(10) * 2 if said else ''}{described(kind, title)}\n"
    if takes_options(kind):
        yield f"```text\n{kind.__name__}{signature(kind)}\n```\n"
        check_options(kind)
    rows = [member_row(kind, name, member) for name, member in members(kind)]
    if rows:
        yield table(("member", "what it does"), rows)


def workflows() -> Iterator[str]:
    yield "## Workflows\n"
    starts = (duly.workflow, duly.chain, duly.group, duly.chord)
    rows = [
        (f"`duly.{each.__name__}{signature(each)}`", described(each, each.__name__))
        for each in starts
    ]
    yield table(("function", "what it does"), rows)
    yield from section("flow", GraphBuilder, level="###")
    yield from section("A node of a flow", FlowNode, level="###")
    yield from section("node[...]", NodeResult, level="###")
    yield from section("SignalResult", SignalResult, level="###")
    yield "### Options of a node\n"
    yield table(("option", "meaning"), option_rows(NodeOptions))
    yield "### Options of a workflow\n"
    yield table(("option", "meaning"), option_rows(WorkflowOptions))
    yield from section("duly.Workflow and duly.AsyncWorkflow", duly.Workflow, level="###")
    facts = ", ".join(f"`{name}`" for name in WorkflowData.__struct_fields__)
    yield f"Its facts: {facts}, `is_terminal`.\n"


def resources() -> Iterator[str]:
    yield "## Other resources\n"
    yield "Attributes of both clients. `list` and `occurrences` are iterators over all pages.\n"
    for name, kind in RESOURCES.items():
        shown = getattr(namespaces, "Async" + kind)
        yield from section(f"client.{name}", shown, level="###")
    yield "### Options of a schedule\n"
    yield table(("option", "meaning"), option_rows(ScheduleOptions))


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Of the class itself, in the order in which it was written."""
    for name, member in vars(kind).items():
        if isinstance(member, operation | listing):
            member = member.function
        is_shown = isinstance(member, property) or inspect.isfunction(member)
        if is_shown and not name.startswith("_") and name not in INNER.get(kind, set()):
            yield name, member


def member_row(kind: type, name: str, member: Any) -> tuple[str, str]:
    if isinstance(member, property):
        return f"`{name}`", described(member, f"{kind.__name__}.{name}")
    return f"`{name}{signature(member)}`", described(member, f"{kind.__name__}.{name}")


def takes_options(kind: type) -> bool:
    return kind in (duly.Client, duly.TaskRegistry, duly.Worker, DulyServer)


def check_options(kind: type) -> None:
    said = inspect.getdoc(kind) or ""
    for name in list(inspect.signature(kind).parameters):
        assert f"`{name}`" in said or kind is DulyServer, f"{kind.__name__} is silent on {name}"


def described(thing: Any, name: str) -> str:
    text = inspect.getdoc(thing)
    assert text, f"{name} is public and has no docstring"
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def signature(function: Callable[..., Any]) -> str:
    """Without `self` and without the rooms of the types."""
    found = inspect.signature(function)
    if inspect.isclass(function):
        found = found.replace(return_annotation=inspect.Signature.empty)
    shown = found.replace(parameters=[p for p in found.parameters.values() if p.name != "self"])
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(shown))
    text = re.sub(r"'([A-Z][\w\[\], |]*)'|~(\w+)", r"\1\2", text)
    text = re.sub(r"\*<class '?(\w+)'?>", r"Unpack[\1]", text)
    # The work behind a listing; a program iterates over the items.
    text = re.sub(r"AsyncIterator\[(?:list|Page)\[(\w+)\]\]", r"AsyncIterator[\1]", text)
    return text.replace(" -> None", "")


def option_rows(options: Any) -> Iterator[tuple[str, str]]:
    said = dict(
        re.findall(r"^(\w+): (.+(?:\n +.+)*)$", inspect.getdoc(options) or "", re.MULTILINE)
    )
    for name in options.__annotations__:
        assert name in said, f"{options.__name__} is silent on {name}"
        yield f"`{name}`", " ".join(said[name].split())


def error_rows() -> Iterator[tuple[str, str, str]]:
    public = [getattr(duly, name) for name in duly.__all__]
    kinds = [e for e in public if inspect.isclass(e) and issubclass(e, DulyError)]
    for kind in sorted(kinds, key=lambda each: list(WHEN).index(each) if each in WHEN else -1):
        if kind is DulyError or kind.__module__ == inline_mode.__name__:
            continue
        assert kind in WHEN, f"say when {kind.__name__} is raised"
        yield f"`{kind.__name__}`", codes_of(kind), WHEN[kind]


def codes_of(kind: type[DulyError]) -> str:
    """The problems that become this error, by status."""
    found: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        if type(errors.error_of(status, {"code": code.value}, None)) is kind:
            found.setdefault(status, []).append(f"`{code}`")
    return "; ".join(f"{status}: {', '.join(codes)}" for status, codes in sorted(found.items()))


def handler_row(kind: type[Exception]) -> tuple[str, str]:
    return f"`duly.{kind.__name__}{signature(kind)}`", described(kind, kind.__name__)


def fixture_rows() -> Iterator[tuple[str, str]]:
    for name, made in vars(plugin).items():
        function = getattr(made, "_fixture_function", None)
        if function is not None:
            yield f"`{name}`", described(function, name)


def inline_error_rows(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and issubclass(kind, DulyError) and kind not in (DulyError, *WHEN):
            yield f"`{name}`", described(kind, name)


def table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("|", "\\|")


def main() -> None:
    text = make_reference()
    is_new = not REFERENCE.exists() or REFERENCE.read_text("utf-8") != text
    REFERENCE.write_text(text, "utf-8")
    sys.stdout.write(f"{REFERENCE.name} is {'new' if is_new else 'unchanged'}\n")


if __name__ == "__main__":
    main()
