"""Finding PostgreSQL's programs: the configured folder wins, and too old is as good as none."""

from pathlib import Path

import pytest

from duly.domain.errors import PostgresBinariesMissing
from duly.store import binaries
from duly.store.binaries import find_binaries


def fake_postgres(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True)
    program = folder / "postgres"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return folder


def version(major: int) -> str:
    return f'echo "postgres (PostgreSQL) {major}.4 (Debian {major}.4-1)"'


def test_the_wheel_provides_a_usable_server() -> None:
    """On a machine without PostgreSQL nothing would work otherwise."""
    found = find_binaries("")
    assert found.major >= binaries.MAJOR_MIN
    for program in ("postgres", "initdb", "pg_ctl"):
        assert Path(found.program(program)).is_file()


def test_the_configured_folder_comes_before_any_other(tmp_path: Path) -> None:
    """Who names a folder means that server and no other."""
    folder = fake_postgres(tmp_path / "mine", version(17))
    assert find_binaries(str(folder)).folder == folder


def test_a_configured_folder_without_programs_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Falling back to another server would hide the mistake."""
    with pytest.raises(PostgresBinariesMissing, match=str(tmp_path)):
        find_binaries(str(tmp_path))


@pytest.mark.parametrize(
    "says", [version(13), "exit 1", "echo nonsense", "echo 'postgres (PostgreSQL) devel'"]
)
def test_a_server_that_is_too_old_or_not_one_is_not_used(tmp_path: Path, says: str) -> None:
    """duly's SQL needs 14; an older one would fail in the middle of a migration."""
    folder = fake_postgres(tmp_path / "old", says)
    with pytest.raises(PostgresBinariesMissing):
        find_binaries(str(folder))


def test_an_existing_cluster_gets_its_own_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer server refuses an older cluster: after an upgrade the old programs must be found."""
    for major in (16, 18):
        fake_postgres(tmp_path / str(major) / "bin", version(major))
    monkeypatch.setattr(binaries, "WHEELS", ())
    monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", (f"{tmp_path}/*/bin",))
    assert find_binaries("").major == 18
    assert find_binaries("", 16).major == 16
    with pytest.raises(PostgresBinariesMissing, match="PostgreSQL 15"):
        find_binaries("", 15)
