"""Default folders of duly's files, the same for the server and for the clients that look for it."""

from collections.abc import Mapping
from pathlib import Path

# For a user without a home: a container's, mostly.
SYSTEM_DATA_FOLDER = Path("/var/lib/duly")


def default_data_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_DATA_HOME")
    if base:
        return Path(base) / "duly"
    home = home_folder()
    return SYSTEM_DATA_FOLDER if home is None else home / ".local" / "share" / "duly"


def default_config_file(environ: Mapping[str, str]) -> Path | None:
    base = environ.get("XDG_CONFIG_HOME")
    if base:
        return Path(base) / "duly" / "duly.toml"
    home = home_folder()
    return None if home is None else home / ".config" / "duly" / "duly.toml"


def home_folder() -> Path | None:
    """None: HOME is not set, and the user has no entry in the password database."""
    try:
        return Path.home()
    except RuntimeError:
        return None
