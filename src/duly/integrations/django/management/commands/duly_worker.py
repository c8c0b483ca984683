"""`manage.py duly_worker`: `duly worker` with the settings and the connections of a project."""

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import click
from asgiref.sync import sync_to_async
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from duly.cli.worker import run_again_and_again, start_worker
from duly.client.context import Context
from duly.domain.errors import DulyError
from duly.integrations.django.options import read_options

# Of the event loop, until they are done.
closing: set[asyncio.Task[None]] = set()


class Command(BaseCommand):  # type: ignore[misc, unused-ignore]
    help = "Run the worker DULY['WORKER'], or MODULE:NAME, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("target", nargs="?", metavar="MODULE:NAME")
        parser.add_argument("--pool", action="append", dest="pools", metavar="NAME")
        parser.add_argument("--bands", metavar="BAND,...", help="high, normal, low")
        parser.add_argument("--concurrency", type=int, metavar="N")
        parser.add_argument("--drain-s", type=float, metavar="S")
        parser.add_argument("--reload", action="store_true", help="restart when a file changes")
        parser.add_argument("--plan", action="store_true", help="only show changes of schedules")

    def handle(self, *_arguments: Any, **given: Any) -> None:
        target = given["target"] or read_options().worker
        if target is None:
            raise CommandError("which worker? Name MODULE:NAME, or DULY['WORKER'] in the settings")
        if given["reload"]:
            sys.exit(run_again_and_again([each for each in sys.argv if each != "--reload"]))
        named = {name: given[name] for name in ("pools", "bands", "concurrency", "drain_s")}
        try:
            start_worker(target, named, is_planning=given["plan"], around=current_connections)
        except (click.UsageError, DulyError) as error:
            raise CommandError(str(error)) from error


def current_connections(_ctx: Context) -> Iterator[None]:
    """Around each attempt, as Django does around each request: connections that are too old or
    broken are not used again."""
    close_connections()
    try:
        yield
    finally:
        close_connections()


def close_connections() -> None:
    """Those of this thread; of an async handler, those of the thread where its queries run."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        close_old_connections()
        return
    task = loop.create_task(sync_to_async(close_old_connections)())
    closing.add(task)
    task.add_done_callback(closing.discard)
