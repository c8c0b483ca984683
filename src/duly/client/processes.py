"""Processes for functions that compute: each child runs one attempt at a time, for one thread here.

| event | what happens |
|---|---|
| the handler kills its process | that attempt failed; the next one gets a new process |
| the attempt has to stop | its process is killed |
| the worker is killed | its children see that and end |
| Ctrl-C, or a signal to the whole group | the children ignore it: the worker decides |
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from duly.client.attempt_logs import PipedLog, capture, capturing
from duly.client.context import Context
from duly.client.handlers import Handler, perform
from duly.client.leased_tasks import LeasedTask
from duly.client.leases import Run
from duly.client.outcomes import HandlerOutcome, failed, rejected
from duly.client.payloads import Binder
from duly.client.task_handle import function_of, importable
from duly.client.threads import ThreadJob
from duly.domain.errors import ConfigurationError

# Not `fork`: it copies locks that other threads hold.
SPAWN = multiprocessing.get_context("spawn")
JOIN_S = 5.0


class Child:
    """One process, and our end of the pipe to it."""

    def __init__(self) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(theirs,), name="duly handler", daemon=True)
        self.process.start()
        theirs.close()

    def run(self, handler: Handler, run: Run) -> HandlerOutcome:
        """In whichever thread: until the child answers or is no more."""
        try:
            self.pipe.send((importable(handler.function), msgspec.json.encode(run.task)))
            while True:
                kind, value = self.pipe.recv()
                if kind == "progress":
                    run.context.reported = value
                elif kind == "log":
                    if run.context.attempt_log is not None:
                        run.context.attempt_log.add(*value)
                else:
                    return HandlerOutcome(*value)
        except (EOFError, ConnectionError):
            self.process.join(JOIN_S)
            return failed(
                f"the handler's process ended with exit code {self.process.exitcode}", "ProcessDied"
            )
        except (TypeError, AttributeError, ImportError) as error:
            return rejected(f"the handler cannot be sent to a process: {error}", "InvalidHandler")

    def is_alive(self) -> bool:
        return self.process.is_alive()

    def end(self) -> None:
        self.process.kill()


class ProcessPool:
    def __init__(self, processes_max: int) -> None:
        self.slots = threading.Semaphore(processes_max)
        self.lock = threading.Lock()
        self.idle: list[Child] = []
        self.children: set[Child] = set()
        self.is_closed = False

    def run(self, handler: Handler, run: Run, job: ThreadJob) -> HandlerOutcome:
        """Blocks its thread; an interruption kills the child, which ends the wait."""
        with self.slots:
            child = self.take()
            with job.lock:
                job.on_interrupt = child.end
                if job.is_interrupted:
                    child.end()
            try:
                return child.run(handler, run)
            finally:
                with job.lock:
                    job.on_interrupt = None
                self.give_back(child)

    def take(self) -> Child:
        with self.lock:
            while self.idle:
                child = self.idle.pop()
                if child.is_alive():
                    return child
                self.children.discard(child)
            child = Child()
            self.children.add(child)
            return child

    def give_back(self, child: Child) -> None:
        with self.lock:
            if child.is_alive() and not self.is_closed:
                self.idle.append(child)
            else:
                child.end()
                child.pipe.close()
                self.children.discard(child)

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            for child in self.children:
                child.end()
            for child in self.children:
                child.process.join(JOIN_S)


def serve(pipe: Connection) -> None:
    """The child's whole life."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    binders: dict[Any, Binder] = {}
    capture.begin()
    lock = threading.Lock()

    def send(message: Any) -> None:
        """A handler may log in threads of its own."""
        with lock:
            pipe.send(message)

    while True:
        try:
            function, encoded = pipe.recv()
        except EOFError:
            return
        except (AttributeError, ImportError) as error:
            reason = f"the handler cannot be found in a new process: {error}"
            pipe.send(("done", tuple(rejected(reason, "InvalidHandler"))))
            continue
        pipe.send(("done", tuple(answer(function, encoded, binders, send))))


def answer(
    function: Callable[..., Any],
    encoded: bytes,
    binders: dict[Any, Binder],
    send: Callable[[Any], None],
) -> HandlerOutcome:
    task = msgspec.json.decode(encoded, type=LeasedTask)
    function = function_of(function)
    try:
        if function not in binders:
            binders[function] = Binder(function)
    except ConfigurationError as error:
        return rejected(str(error), "InvalidHandler")
    context = Context(task, lambda progress: send(("progress", progress)))
    context.attempt_log = PipedLog(send)
    binder = binders[function]
    with capturing(context.attempt_log):
        return perform(lambda: function(context, **binder.arguments(task.payload)), task)


def end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
