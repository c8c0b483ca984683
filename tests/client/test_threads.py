"""Threads for plain functions: stopped from outside, and never hit by another's stop."""

import queue
import threading

from duly.client.outcomes import DONE, HandlerOutcome
from duly.client.threads import ThreadJob, ThreadPool

WAIT_S = 10.0


def test_a_thread_is_interrupted_at_its_next_instruction() -> None:
    """A plain loop without any await has no other way to be stopped."""
    ends: queue.SimpleQueue[HandlerOutcome | None] = queue.SimpleQueue()
    started = threading.Event()

    def loop_for_ever(_job: ThreadJob) -> HandlerOutcome:
        started.set()
        while True:
            pass

    pool = ThreadPool(1)
    job = ThreadJob(loop_for_ever, ends.put)
    pool.start(job)
    assert started.wait(WAIT_S)
    job.interrupt()
    assert ends.get(timeout=WAIT_S) is None
    pool.close()


def test_an_interruption_never_hits_the_next_job() -> None:
    """The thread is the same; the attempt is another, and nobody cancelled it."""
    ends: queue.SimpleQueue[HandlerOutcome | None] = queue.SimpleQueue()
    pool = ThreadPool(1)
    for moment in range(200):
        job = ThreadJob(lambda _job: DONE, ends.put)
        pool.start(job)
        if moment % 2:
            assert ends.get(timeout=WAIT_S) == DONE
            pool.start(ThreadJob(count_a_while, ends.put))
            job.interrupt()
        else:
            job.interrupt()
            assert ends.get(timeout=WAIT_S) in (DONE, None)
            pool.start(ThreadJob(count_a_while, ends.put))
        assert ends.get(timeout=WAIT_S) == DONE
    pool.close()


def count_a_while(_job: ThreadJob) -> HandlerOutcome:
    for _ in range(50_000):
        pass
    return DONE


def test_there_are_never_more_threads_than_allowed_and_idle_ones_are_used_again() -> None:
    """A thread for each task would be the end of a busy worker."""
    ends: queue.SimpleQueue[HandlerOutcome | None] = queue.SimpleQueue()
    pool = ThreadPool(2)
    for _ in range(20):
        pool.start(ThreadJob(lambda _job: DONE, ends.put))
    for _ in range(20):
        assert ends.get(timeout=WAIT_S) == DONE
    assert pool.threads <= 2
    pool.close()


def test_a_job_that_was_interrupted_before_its_turn_does_not_run() -> None:
    """Its lease is gone; its effect must not come."""
    ran: list[int] = []
    ends: queue.SimpleQueue[HandlerOutcome | None] = queue.SimpleQueue()

    def work(_job: ThreadJob) -> HandlerOutcome:
        ran.append(1)
        return DONE

    job = ThreadJob(work, ends.put)
    job.interrupt()
    pool = ThreadPool(1)
    pool.start(job)
    assert ends.get(timeout=WAIT_S) is None
    assert not ran
    pool.close()
