"""Handlers that run in processes of their own: such a process must be able to import them."""

import logging
import os
import time
from typing import Any

from duly import Context, TaskRegistry


def add(ctx: Context, numbers: list[int]) -> dict[str, Any]:
    ctx.progress({"added": len(numbers)})
    return {"sum": sum(numbers), "pid": os.getpid(), "key": ctx.execution_key}


def fail(ctx: Context) -> None:
    ctx.progress("before it failed")
    raise ValueError("not today")


def die(ctx: Context, always: bool) -> int:
    if always or ctx.attempt == 1:
        os._exit(7)
    return os.getpid()


def spin(ctx: Context, path: str) -> None:
    """Until it is killed, leaving its process's number where it was told."""
    with open(path, "w") as file:  # noqa: PTH123 (as plain as users write it)
        file.write(str(os.getpid()))
    while True:
        time.sleep(0.01)


tasks = TaskRegistry()


@tasks.task("double", run="process")
def double(ctx: Context, number: int) -> int:
    return 2 * number


def talk(ctx: Context) -> None:
    print("printed in a process")
    logging.getLogger("of.the.program").warning("logged in a process")
    ctx.log.info("by its context")
