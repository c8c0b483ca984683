"""What a figure depends on: the machine, the server's settings, versions and commit."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import asyncpg

import duly

SERVER_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "wal_compression",
)


async def machine_facts(url: str) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in SERVER_SETTINGS}
    finally:
        await connection.close()
    return {
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "duly": duly.__version__,
        "commit": commit(),
        "asyncpg": asyncpg.__version__,
        "postgresql": settings,
    }


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return answer.stdout.strip() or "unknown"
