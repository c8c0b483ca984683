"""Machine facts that a figure depends on: the machine, versions and the commit. Never the figures
themselves."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import duly

LIBRARIES = ("asyncpg", "uvloop", "msgspec", "aiohttp", "uvicorn")
CHECKOUT = Path(duly.__file__).parents[2]


def machine_facts() -> dict[str, Any]:
    """`postgresql` is filled in by the first server that runs."""
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "duly": duly.__version__,
        "commit": commit(),
        "libraries": {name: library_version(name) for name in LIBRARIES},
        "postgresql": {},
    }


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def library_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Of a checkout; an installed package has none, whatever repository it happens to lie in."""
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        return None
    answer = subprocess.run(
        [git, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
    )
    return answer.stdout.strip() or None
