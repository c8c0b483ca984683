"""The thumbnails application, started as its page says and handed a folder."""

import signal
from pathlib import Path

import pytest
from examples.thumbnails.app import POOL, Picture, encode, read, shrink

from duly import Client
from tests.processes import PROJECT, child, eventually
from tests.story.duly_up import duly_up
from tests.story.test_duly_up import external

WAIT_S = 30.0


def test_a_picture_keeps_its_colours() -> None:
    """An example that is wrong is copied all the same."""
    checkered = Picture(4, 2, (b"\xff\x00\x00" * 2 + b"\x00\x00\xff" * 2) * 2)
    assert shrink(checkered, 2) == Picture(2, 1, b"\xff\x00\x00\x00\x00\xff")


@pytest.mark.slow
def test_a_folder_of_pictures_becomes_small_ones(
    owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """A real worker on a real duly: split, compute in processes, reject what is no picture."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.ppm").write_bytes(encode(Picture(100, 50, b"\x01\x02\x03" * 5000)))
    (tmp_path / "text.ppm").write_text("not a picture")
    with duly_up(environ=external(owner_url, engine_url)) as duly:
        environ = {"DULY_URL": duly.url, "DULY_API_KEY": duly.ready["api_key"]}
        target = "examples.thumbnails.app:worker"
        with (
            child("-m", "duly", "worker", target, environ=environ) as process,
            Client(duly.url, duly.ready["api_key"]) as client,
        ):
            folder = client.submit("thumbnails.folder", {"folder": str(tmp_path)}, pool=POOL)
            assert client.wait(folder.id, WAIT_S).output == 3
            eventually(
                lambda: all(each.is_terminal for each in client.tasks(type="thumbnails.make")),
                "every picture has ended",
            )
            states = sorted(each.state for each in client.tasks(type="thumbnails.make"))
            assert states == ["COMPLETED", "COMPLETED", "FAILED"]
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
    assert (PROJECT / "examples" / "thumbnails" / "README.md").exists()
    small = read(tmp_path / "small" / "one.ppm")
    assert (small.width, small.height) == (64, 32)
    assert not list((tmp_path / "small").glob("*.draft"))
