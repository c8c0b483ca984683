"""Tasks with an owner end with it."""

import asyncio

import pytest

from duly.child_tasks import ChildTasks


async def test_closing_ends_what_still_runs() -> None:
    """A look-up that outlives its cache runs on a pool that is closed."""
    children = ChildTasks()
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = children.start(wait())
    await started.wait()
    await children.close()
    assert (task.cancelled(), ended.is_set(), children.running) == (True, True, set())


async def test_a_child_that_failed_does_not_fail_the_close() -> None:
    """Its caller was told; the owner must end the others all the same."""
    children = ChildTasks()

    async def fail() -> None:
        raise ZeroDivisionError

    task = children.start(fail())
    await children.close()
    with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
        await task
