"""`python -m tests.chaos.receiver`: takes webhooks, writes each to its effect log, then answers."""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.chaos.worker import EffectLog
from tests.execution.receiver import Behave, Request, answer, receiving


def make_behaviour(effects: EffectLog) -> Behave:
    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        headers = request.headers
        asked = json.loads(request.body)
        effects.write(headers["duly-task-id"], int(headers["duly-fence"]), None)
        await asyncio.sleep(asked.get("seconds", 0.0))
        has_failed = int(headers["duly-attempt"]) <= asked.get("failures", 0)
        says = json.dumps(asked.get("says", {})).encode()
        await answer(500 if has_failed else 200, says)(request, writer)

    return behave


async def serve(port: int, effects: EffectLog) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with receiving(port=port) as receiver:
        receiver.behave = make_behaviour(effects)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--effects", required=True, type=Path)
    arguments = parser.parse_args()
    asyncio.run(
        serve(arguments.port, EffectLog(arguments.effects / f"effects-{os.getpid()}.jsonl"))
    )


if __name__ == "__main__":
    main()
