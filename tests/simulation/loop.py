"""An event loop whose time is virtual, and the one window from it into the real world.

Nothing in the loop waits for real: when nobody can run, the clock jumps to the next timer. What
needs the real world (PostgreSQL) runs to its end on a second, ordinary loop while this one stands
still, so the order of events depends on the seed and never on how fast a server answers.
"""

import asyncio
import contextvars
import heapq
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

Answer = TypeVar("Answer")
Register = Callable[["asyncio.Task[Any]"], None]
# Whether a step may not run now: whoever says so keeps it and hands it back to `resume`.
KeepBack = Callable[["asyncio.Handle", contextvars.Context], bool]
# Far more than any honest instant needs.
STEPS_PER_INSTANT_MAX = 200_000
# Longer than any run takes to heal: roles that tick beside a run that waits for ever pass the time.
VIRTUAL_S_MAX = 6 * 3600.0


class Stuck(AssertionError):
    """Everybody waits and no timer will wake anybody, or somebody works and time never passes, or
    it passes and nothing comes of it."""


class Step(asyncio.Handle):
    """A piece of work that is ready to run, unless its node is frozen."""

    _context: contextvars.Context
    _loop: "VirtualLoop"

    def _run(self) -> None:
        if not self._loop.keeps_back(self, self._context):
            super()._run()


class LaterStep(asyncio.TimerHandle):
    """The same at a later instant."""

    _context: contextvars.Context
    _loop: "VirtualLoop"
    _scheduled: bool

    def _run(self) -> None:
        if not self._loop.keeps_back(self, self._context):
            super()._run()


class VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the clock to it. There is no other input."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self.advance = advance
        self.steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if timeout is None or self.steps > STEPS_PER_INSTANT_MAX:
            raise Stuck
        if timeout > 0:
            self.advance(timeout)
            self.steps = 0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    _ready: Any
    _scheduled: Any

    def __init__(self, keep_back: KeepBack | None = None) -> None:
        self.elapsed_s = 0.0
        self.keep_back = keep_back
        super().__init__(VirtualSelector(self.advance))

    def time(self) -> float:
        return self.elapsed_s

    def advance(self, seconds: float) -> None:
        before_s = self.elapsed_s
        self.elapsed_s += seconds
        # Once: after it, the tasks that are left are ended.
        if before_s <= VIRTUAL_S_MAX < self.elapsed_s:
            raise Stuck

    def keeps_back(self, step: asyncio.Handle, context: contextvars.Context) -> bool:
        return self.keep_back is not None and self.keep_back(step, context)

    def resume(self, steps: list[asyncio.Handle]) -> None:
        """In the order in which they were kept back; what was cancelled meanwhile stays undone."""
        self._ready.extend(steps)

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        """What `call_soon` and every task and future go through."""
        step = Step(callback, args, self, context)
        self._ready.append(step)
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> LaterStep:
        timer = LaterStep(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer


class RealWorld:
    """An ordinary event loop that runs one piece of work at a time, from inside another loop."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()

    def run(self, work: Awaitable[Answer]) -> Answer:
        """Block until the work is done; the loop that calls stands still meanwhile."""
        outer = asyncio._get_running_loop()
        if outer is None:
            return self.loop.run_until_complete(work)
        task = asyncio.current_task(outer)
        if task is not None:
            asyncio.tasks._leave_task(outer, task)
        asyncio._set_running_loop(None)
        try:
            return self.loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)
            if task is not None:
                asyncio.tasks._enter_task(outer, task)

    def close(self) -> None:
        self.loop.close()


def run_virtually(
    main: Coroutine[Any, Any, Answer], register: Register, keep_back: KeepBack | None = None
) -> Answer:
    """Run to the end on a fresh loop; `register` is told of every task as it is made."""
    loop = VirtualLoop(keep_back)
    raised: list[BaseException] = []

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Of a callback, which has no caller that could fail; a loop would only print it."""
        if "handle" in context:
            raised.append(context["exception"])
        else:
            loop.default_exception_handler(context)

    def make_task(
        loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        register(task)
        return task

    loop.set_task_factory(make_task)
    loop.set_exception_handler(on_exception)
    try:
        answer = loop.run_until_complete(main)
    finally:
        loop.run_until_complete(end_tasks())
        loop.close()
    if raised:
        raise raised[0]
    return answer


async def end_tasks() -> None:
    """Whatever is left over, of the living and of the killed."""
    mine = asyncio.current_task()
    rest = [task for task in asyncio.all_tasks() if task is not mine]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
