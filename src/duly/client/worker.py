"""`duly.Worker`: the user's own process that runs tasks. What it is made of comes with its start.

worker = Worker(pools=["default"], concurrency=100)

@worker.task("email.send")
async def send(ctx, to: str): ...
"""

import faulthandler
import functools
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from duly.client.clock import monotonic
from duly.client.registry import TaskRegistry
from duly.client.server import find_server
from duly.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from duly.client.middleware import Middleware
    from duly.client.schedule_plan import ScheduleStep
    from duly.client.session import Plan, Session

DRAIN_S = 10.0
LEASE_S = 15.0
LEASE_S_MIN = 0.5
CONCURRENCY_MAX = 10_000
POOLS_MAX = 32
PREFETCH_MAX = 100
# Beyond the drain, for a loop that a handler blocks: then what it holds is given back without it.
BLOCKED_S = 0.25
# Beyond the drain, for everything: giving back, closing, what the interpreter does at its end.
LEAVE_S = 1.5
STDERR = 2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
NAME_CHARACTERS_MAX = 60
VERSION_PATTERN = re.compile(r"[\x21-\x7e]{0,64}")
Function = TypeVar("Function", bound=Callable[..., Any])


class Worker(TaskRegistry):
    """Leases tasks of some pools, runs their handlers, settles them. A registry of task types, too.

    `url` and `api_key`: as of a client. `pools`: whose tasks it takes. `bands`: and of which
    priorities: "high" (7 to 9), "normal" (3 to 6), "low" (0 to 2). `concurrency`: handlers at once.
    `prefetch`: tasks taken beyond that while handlers are short. `processes`: children for handlers
    with `run="process"`. `lease_s`: how soon others take over when this process dies.
    `apply_schedules`: whether its start creates and changes the schedules of `cron` and `every`.
    `drain_s`: what running handlers get when it is told to stop; 1.5 s after them a process that
    got SIGTERM in `run` is gone, unless its program itself goes on after `run`. `version`: of your
    program, for `duly workers history`. `redact`: regular expressions; what they match in a line
    that a handler logs or prints is not kept.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        pools: Sequence[str] = ("default",),
        bands: Sequence[str] = ("high", "normal", "low"),
        concurrency: int = 100,
        prefetch: int | None = None,
        processes: int | None = None,
        lease_s: float = LEASE_S,
        drain_s: float = DRAIN_S,
        apply_schedules: bool = True,
        version: str = "",
        redact: Sequence[str] = (),
    ) -> None:
        super().__init__(url=url, api_key=api_key)
        for name, given in (("pools", pools), ("bands", bands)):
            if isinstance(given, str):
                # Each of its letters would be one.
                problem = f"{name} is a list of names: {name}=[{given!r}]"
                raise ConfigurationError(problem=problem)
        self.pools = list(pools)
        self.bands = list(bands)
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.processes = processes
        self.lease_s = lease_s
        self.drain_s = drain_s
        self.apply_schedules = apply_schedules
        self.version = version
        self.redact = list(redact)
        self.session: Session | None = None
        # By when a SIGTERM must have ended everything.
        self.leaves_at: float | None = None

    def default_pool(self) -> str | None:
        """Where the tasks of its handles go: its first pool."""
        return self.pools[0] if self.pools else None

    @functools.cached_property
    def middleware(self) -> "Middleware":
        """What `before`, `around` and `after` have registered."""
        from duly.client.middleware import Middleware

        return Middleware()

    def before(self, function: Function) -> Function:
        """Call `function(ctx)` before each attempt; what it raises ends the attempt."""
        self.middleware.before.append(function)
        return function

    def around(self, function: Function) -> Function:
        """Run each attempt inside of a generator `function(ctx)`, at its one `yield`, which raises
        what the handler raises. The first one registered is the outermost."""
        self.middleware.around.append(function)
        return function

    def after(self, function: Function) -> Function:
        """Call `function(ctx, outcome)` once an attempt has ended in any way, in the event loop's
        thread. What it raises is logged."""
        self.middleware.after.append(function)
        return function

    def plan_schedules(self) -> "list[ScheduleStep]":
        """What a start would change of the schedules of `cron` and `every`. Changes nothing."""
        from duly.client.code_schedules import plan_schedules

        return plan_schedules(find_server(self.url, self.api_key), self.schedules)

    def run(self) -> None:
        """Until SIGTERM or Ctrl-C; a second one ends the process at once."""
        from duly.client.logs import show_logs

        show_logs()
        try:
            loop_runner()(self.serve_until_signal())
        finally:
            if self.leaves_at is not None:
                faulthandler.cancel_dump_traceback_later()
                threading.Thread(
                    target=leave_after_program, args=(self.leaves_at,), name="duly end", daemon=True
                ).start()

    async def serve_until_signal(self) -> None:
        previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number in STOP_SIGNALS:
            # Not the loop's own way: a handler that blocks the loop must not block a signal.
            signal.signal(number, self.on_signal)
        try:
            await self.serve()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def on_signal(self, number: int, _frame: object) -> None:
        session = self.session
        if session is None or session.is_asked_to_stop:
            os._exit(128 + number)
        session.stop()
        drain_s = session.plan.drain_s
        session.end_process_after(drain_s + BLOCKED_S)
        if number == signal.SIGTERM:
            # Threads that are waited for, a cleanup that hangs: shown, and left. Not for Ctrl-C,
            # after which a person may go on in the same interpreter.
            self.leaves_at = monotonic() + drain_s + LEAVE_S
            faulthandler.dump_traceback_later(drain_s + LEAVE_S, exit=True, file=STDERR)
            # Looking through the whole heap for garbage was most of what came after the drain.
            gc.freeze()

    async def serve(self) -> None:
        """Inside your own event loop, until `stop()` or until the task is cancelled."""
        from duly.client.code_schedules import apply_schedules
        from duly.client.session import Session

        plan = self.plan()
        for handler in self.handlers.values():
            # Whatever is wrong with its signature is said before anything is leased.
            assert handler.binder
            self.middleware.check(handler)
        if self.session is not None:
            raise ConfigurationError(problem="this worker runs already")
        server = find_server(self.url, self.api_key)
        self.session = Session(plan, server, self.handlers, self.middleware, self.resources())
        try:
            if self.schedules and self.apply_schedules:
                await self.session.until_stopped(apply_schedules(server, self.schedules))
            await self.session.serve()
        finally:
            self.session = None

    def stop(self) -> None:
        """Drain and return from `run` or `serve`. From any thread."""
        if self.session is not None:
            self.session.stop()

    def plan(self) -> "Plan":
        from importlib.metadata import version

        from duly.client.leased_tasks import WorkerOrigin
        from duly.client.session import Plan
        from duly.client.wire import new_key
        from duly.domain.limits import LEASE_S_MAX, POOL_PATTERN
        from duly.domain.task import BAND_NAMES

        if not self.handlers:
            raise ConfigurationError(
                problem="the worker has no handlers: add one with @worker.task"
            )
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ConfigurationError(problem=f"concurrency is not from 1 to {CONCURRENCY_MAX}")
        if not LEASE_S_MIN <= self.lease_s <= LEASE_S_MAX:
            problem = f"lease_s is not from {LEASE_S_MIN:g} to {LEASE_S_MAX:g}"
            raise ConfigurationError(problem=problem)
        if not 1 <= len(self.pools) <= POOLS_MAX:
            raise ConfigurationError(problem=f"a worker has from 1 to {POOLS_MAX} pools")
        for pool in self.pools:
            if not POOL_PATTERN.fullmatch(pool):
                raise ConfigurationError(problem=f"{pool!r} cannot be the name of a pool")
        if not self.bands or not BAND_NAMES.keys() >= set(self.bands):
            problem = f"bands are one or more of {', '.join(BAND_NAMES)}, not {self.bands}"
            raise ConfigurationError(problem=problem)
        if not VERSION_PATTERN.fullmatch(self.version):
            raise ConfigurationError(problem=f"{self.version!r} cannot be a version")
        prefetch = min(self.concurrency, PREFETCH_MAX) if self.prefetch is None else self.prefetch
        return Plan(
            worker_id(new_key()),
            self.pools,
            list(dict.fromkeys(self.bands)),
            self.concurrency,
            max(prefetch, 0),
            self.processes or os.cpu_count() or 1,
            self.lease_s,
            max(self.drain_s, 0.0),
            WorkerOrigin(f"duly-python/{version('duly')}", self.version, self.concurrency),
            redactions(self.redact),
        )


def loop_runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """uvloop's where the program has it: it is faster, and larger than all of the client."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.run
    return uvloop.run


def leave_after_program(leaves_at: float) -> None:
    """What a program does after `run` takes as long as it takes; what keeps the interpreter from
    ending after that, such as a thread of a library, does not."""
    threading.main_thread().join()
    left_s = leaves_at - monotonic()
    faulthandler.dump_traceback_later(left_s if left_s > 0 else LEAVE_S, exit=True, file=STDERR)


def redactions(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise ConfigurationError(problem=f"redact has no regular expression: {error}") from None


def worker_id(chance: str) -> str:
    """Unique to this start of this process: a holder that comes back is another holder."""
    import socket

    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())
    return f"{host[:NAME_CHARACTERS_MAX]}:{os.getpid()}:{chance[:12]}"
