"""Default folders exist as names for every user, also for one without a home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duly.domain.folders import default_config_file, default_data_folder
from tests.processes import PROJECT
from tests.store.folders import is_root

NAMELESS_UID = 54321
SHOW = """
import os, sys
from duly.domain import folders
from duly.settings import load_settings
if os.geteuid() == 0:
    os.setresuid({uid}, {uid}, {uid})
settings = load_settings({{}}, os.environ).settings
print(settings.data_dir, folders.default_config_file(os.environ))
"""


def test_the_folders_of_the_environment_win(tmp_path: Path) -> None:
    """A service with its own XDG folders must not write into a home."""
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "set")}
    assert default_data_folder(environ) == tmp_path / "data" / "duly"
    assert default_config_file(environ) == tmp_path / "set" / "duly" / "duly.toml"


@pytest.mark.skipif(not is_root(), reason="only root can become another user")
@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, "/var/lib/duly None"),
        # After `su` without a dash, HOME still names a home that is closed to the user.
        ({"HOME": "/root"}, "/root/.local/share/duly /root/.config/duly/duly.toml"),
    ],
)
def test_a_user_without_a_home_gets_the_system_folder(environ: dict[str, str], shown: str) -> None:
    """A container may run as a number without a name: settings must load all the same."""
    kept = {name: value for name, value in os.environ.items() if name == "PATH"}
    ended = subprocess.run(
        [sys.executable, "-c", SHOW.format(uid=NAMELESS_UID)],
        cwd=PROJECT,
        env=kept | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout.strip(), ended.stderr) == (shown, "")
