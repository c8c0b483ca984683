"""Threads for plain functions: made when needed, kept, and never waited for at the end.

| event | what happens |
|---|---|
| the attempt has to stop | `Interrupted` is raised in the thread at its next Python instruction |
| the thread is inside a long call of C | it goes on until that call returns; its slot stays taken |
| the process ends | the threads end with it |
"""

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable

from duly.client.handlers import Interrupted
from duly.client.outcomes import HandlerOutcome


class ThreadJob:
    """One function call in some thread; `None` is the verdict of one that was interrupted."""

    def __init__(
        self,
        work: Callable[["ThreadJob"], HandlerOutcome],
        done: Callable[[HandlerOutcome | None], None],
    ) -> None:
        self.work = work
        self.done = done
        self.lock = threading.Lock()
        self.thread: int | None = None
        self.is_interrupted = False
        # Stops what the thread waits for and cannot be interrupted in.
        self.on_interrupt: Callable[[], None] | None = None

    def run(self) -> None:
        verdict: HandlerOutcome | None = None
        with contextlib.suppress(Interrupted):
            verdict = self.run_interruptibly()
        self.done(verdict)

    def run_interruptibly(self) -> HandlerOutcome | None:
        with self.lock:
            if self.is_interrupted:
                return None
            self.thread = threading.get_ident()
        try:
            return self.work(self)
        finally:
            # An interruption that was asked for before this arrives here at the latest, at the call
            # that gives the lock back; none is asked for after it. So it never hits the next job.
            with self.lock:
                self.thread = None

    def interrupt(self) -> None:
        """From another thread, once."""
        with self.lock:
            if self.is_interrupted:
                return
            self.is_interrupted = True
            if self.on_interrupt is not None:
                self.on_interrupt()
            elif self.thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread), ctypes.py_object(Interrupted)
                )


class ThreadPool:
    def __init__(self, threads_max: int) -> None:
        self.threads_max = threads_max
        self.jobs: queue.SimpleQueue[ThreadJob | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0

    def start(self, job: ThreadJob) -> None:
        with self.lock:
            if self.idle > 0:
                self.idle -= 1
            elif self.threads < self.threads_max:
                self.threads += 1
                name = f"duly handler {self.threads}"
                threading.Thread(target=self.serve, name=name, daemon=True).start()
        self.jobs.put(job)

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            with self.lock:
                self.idle += 1

    def close(self) -> None:
        for _ in range(self.threads):
            self.jobs.put(None)
