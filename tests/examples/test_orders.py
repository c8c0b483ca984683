"""Order fulfilment, started as its page says from a copy of its folder: what is shipped, approved
and undone, and what a killed worker does to it."""

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.serving import Site, served
from tests.processes import PROJECT, Child, child, eventually
from tests.story.duly_up import duly_up
from tests.story.test_duly_up import external

pytestmark = pytest.mark.slow

GOOD = {
    "mail": "ann@x.org",
    "address": "Main Street 1",
    "card": "4111",
    "cents": 4200,
    "items": {"teapot": 1},
}
LEASE_S = "2"


@contextmanager
def shop(folder: Path, environ: dict[str, str]) -> Iterator[Site]:
    shutil.copytree(PROJECT / "examples" / "orders", folder)
    environ |= {"ORDERS_SHOP": str(folder / "shop.sqlite"), "PYTHONPATH": str(folder)}
    environ["ORDERS_LEASE_S"] = LEASE_S
    with served(folder, "api:app", environ) as site:
        yield site


def worker(environ: dict[str, str]) -> Any:
    return child("-m", "duly", "worker", "tasks:worker", environ=environ)


def stop(running: Child) -> None:
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def done(folder: Path) -> list[str]:
    """Everything that happened to the outside world, in order."""
    with closing(sqlite3.connect(folder / "shop.sqlite")) as books:
        return [what for (what,) in books.execute("SELECT what FROM done ORDER BY number")]


def teapots(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as books:
        ((quantity,),) = books.execute("SELECT quantity FROM stock WHERE sku = 'teapot'")
        return int(quantity)


def order(site: Site, number: str, **more: Any) -> str:
    status, answer = site.call("POST", "/orders", {**GOOD, "number": number, **more})
    assert status == 201, answer
    found: str = answer["id"]
    return found


def ended(site: Site, order_id: str) -> dict[str, str]:
    """The steps, once the order has ended."""
    answer: dict[str, Any] = {}

    def has_ended() -> bool:
        answer.update(site.call("GET", f"/orders/{order_id}")[1])
        return bool(answer["state"] != "RUNNING")

    eventually(has_ended, "the order ends")
    return {"order": answer["state"], **answer["steps"]}


def test_orders_are_shipped_or_undone(owner_url: str, engine_url: str, tmp_path: Path) -> None:
    """An example that is wrong is copied all the same."""
    folder = tmp_path / "orders"
    with duly_up(environ=external(owner_url, engine_url)) as duly:
        environ = {"DULY_URL": duly.url, "DULY_API_KEY": duly.ready["api_key"]}
        with shop(folder, environ) as site:
            (folder / "away").touch()
            with worker(environ) as running:
                follow(site, folder)
                stop(running)


def follow(site: Site, folder: Path) -> None:
    shipped = order(site, "1")
    assert order(site, "1") == shipped, "the same order again is the same workflow"
    assert site.call("POST", "/orders", {**GOOD, "number": "1", "cents": 1})[0] == 409
    # The shop's systems come back.
    (folder / "away").unlink()
    steps = ("accept", "charge", "reserve", "ship", "confirm")
    assert ended(site, shipped) == dict.fromkeys(("order", *steps), "COMPLETED")
    words = sorted(what.split()[0] for what in done(folder))
    assert words == ["accept", "charge", "mail", "reserve", "ship"]
    assert teapots(folder) == 4

    declined = ended(site, order(site, "2", card="9"))
    assert (declined["order"], declined["charge"]) == ("FAILED", "FAILED")
    assert teapots(folder) == 4, "what was reserved is back"
    sold_out = ended(site, order(site, "3", items={"teapot": 100}))
    assert (sold_out["order"], sold_out["reserve"]) == ("FAILED", "FAILED")
    for steps_of in (declined, sold_out):
        assert "COMPLETED" not in (steps_of["ship"], steps_of["confirm"])
        assert steps_of["accept:compensate"] == "COMPLETED", "the customer is told"
    refunds = [what.split()[0] for what in done(folder)].count("refund")
    assert refunds == (sold_out["charge"] == "COMPLETED"), "what was charged is refunded"
    assert [what for what in done(folder) if "cannot be delivered" in what] == [
        "mail ann@x.org: order 2 cannot be delivered",
        "mail ann@x.org: order 3 cannot be delivered",
    ]
    assert site.call("DELETE", f"/orders/{shipped}")[0] == 409
    assert site.call("GET", "/orders/019a8f2c-0000-7000-8000-000000000001")[0] == 404
    approve(site, folder)


def approve(site: Site, folder: Path) -> None:
    """A large order waits for a word, and what was done for it is undone if that is no."""
    before = len(done(folder))
    large, refused = (order(site, number, cents=90_000) for number in ("4", "5"))

    def waits() -> bool:
        found = [site.call("GET", f"/orders/{each}")[1] for each in (large, refused)]
        return all(
            each["steps"]["reserve"] == each["steps"]["charge"] == "COMPLETED" for each in found
        )

    eventually(waits, "both are charged and reserved")
    assert teapots(folder) == 2
    for order_id, is_approved in ((large, True), (refused, False)):
        said = {"approved": is_approved, "by": "jane"}
        for _ in range(2):
            assert site.call("POST", f"/orders/{order_id}/approval", said)[0] == 200
    assert ended(site, large)["order"] == "COMPLETED"
    undone = ended(site, refused)
    assert (undone["order"], undone["ship"]) == ("FAILED", "FAILED")
    assert {undone[f"{step}:compensate"] for step in ("accept", "charge", "reserve")} == {
        "COMPLETED"
    }
    assert "ship:compensate" not in undone
    assert teapots(folder) == 3
    happened = done(folder)[before:]
    last = [what.split()[0] for what in happened if what.startswith(("refund", "restock"))]
    assert sorted(last) == ["refund", "restock"]
    assert happened.index("mail ann@x.org: order 5 cannot be delivered") > max(
        happened.index(what) for what in happened if what.startswith(("refund", "restock"))
    )
    assert site.call("POST", f"/orders/{large}/approval", {"approved": True, "by": "x"})[0] == 409


def test_a_killed_worker_charges_nobody_twice(
    owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """The card was charged, and the worker died before it could say so: the next one is asked to
    charge again."""
    folder = tmp_path / "orders"
    with duly_up(environ=external(owner_url, engine_url)) as duly:
        environ = {"DULY_URL": duly.url, "DULY_API_KEY": duly.ready["api_key"]}
        with shop(folder, environ) as site:
            with worker(environ) as dying:
                ids = [order(site, f"k-{n}") for n in range(3)]
                eventually(lambda: (folder / "shop.sqlite").exists() and done(folder), "it began")
                dying.signal(signal.SIGKILL)
                dying.wait()
            with worker(environ) as running:
                states = [ended(site, each)["order"] for each in ids]
                stop(running)
    assert states == ["COMPLETED"] * 3
    words = [what.split()[0] for what in done(folder)]
    assert {word: words.count(word) for word in ("charge", "reserve", "ship", "mail")} == {
        "charge": 3,
        "reserve": 3,
        "ship": 3,
        "mail": 3,
    }
