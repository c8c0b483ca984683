"""Finding duly: what is given, what the environment says, what a `duly up` left."""

from pathlib import Path

import msgspec
import pytest

from duly.client.errors import ServerNotFound
from duly.client.server import LOCAL_FILE, LocalServer, Server, find_server

HERE = "http://127.0.0.1:3859"
AWAY = "https://duly.example.com"


def leave_local(folder: Path, api_key: str = "duly_local") -> None:
    (folder / LOCAL_FILE).write_bytes(msgspec.json.encode(LocalServer(HERE, api_key)))


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ServerNotFound) as caught:
        find_server(environ=environ)
    return str(caught.value)


def test_what_is_named_wins_over_what_is_here(tmp_path: Path) -> None:
    """A program that was told where to go must never reach the laptop's own duly."""
    leave_local(tmp_path)
    environ = {"DULY_DATA_DIR": str(tmp_path)}
    assert find_server(environ=environ) == Server(HERE, "duly_local")
    assert find_server(environ=environ | {"DULY_API_KEY": "k"}) == Server(HERE, "k")
    named = environ | {"DULY_URL": AWAY + "/", "DULY_API_KEY": "k"}
    assert find_server(environ=named) == Server(AWAY, "k")
    assert find_server(HERE, "given", environ=named) == Server(HERE, "given")


def test_an_address_without_a_scheme_is_no_address() -> None:
    """It was looked up as a name, "localhost:3859"."""
    with pytest.raises(ServerNotFound, match="'localhost:3859' is no address such as http://"):
        find_server("localhost:3859", "duly_k", environ={})


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "DULY_URL and DULY_API_KEY are not set, and no `duly up` has left its address in {}"),
        ({"DULY_API_KEY": "k"}, "DULY_URL is not set, and no `duly up` has left its address in {}"),
        ({"DULY_URL": AWAY}, f"the key for {AWAY} is missing; set DULY_API_KEY"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, environ: dict[str, str], problem: str) -> None:
    """`no duly was found` alone sends people to look for a server that runs."""
    said = refusal(environ | {"DULY_DATA_DIR": str(tmp_path)})
    assert said == "no duly was found: " + problem.format(tmp_path / LOCAL_FILE)


def test_a_local_duly_without_a_key_is_told_apart(tmp_path: Path) -> None:
    """Its keys were made elsewhere: the address is right, and only the key is missing."""
    leave_local(tmp_path, api_key="")
    environ = {"DULY_DATA_DIR": str(tmp_path)}
    assert f"one is at {HERE}, but its key is missing" in refusal(environ)
    assert "the key for" in refusal(environ | {"DULY_URL": AWAY})
    assert find_server(environ=environ | {"DULY_API_KEY": "k"}) == Server(HERE, "k")
