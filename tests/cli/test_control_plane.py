"""`duly tenants|keys|types|pauses|nodes|workers` against a real front door."""

import json
from pathlib import Path

import pytest

from duly.cli.keys import ROLES
from duly.cli.pauses import KINDS
from duly.domain.access import Access
from duly.store.tenants import PauseKind
from tests.api.conftest import Front
from tests.cli.conftest import CommandLine


async def test_a_tenant_is_created_changed_and_acted_for(duly: CommandLine) -> None:
    """A bound that cannot be taken away again is found out in an incident."""
    made = await duly.json(
        *("tenants", "create", "acme", "--weight", 2.5, "--in-flight-max", 10),
        *("--dispatch-rate", 5, "--submit-rate", 7.5, "--stored-max", 1000),
    )
    assert (made["weight"], made["in_flight_max"], made["submit_rate"]) == (2.5, 10, 7.5)
    changed = await duly.json("tenants", "set", "acme", "--in-flight-max", "none")
    assert changed == made | {"in_flight_max": None}
    assert await duly.json("tenants", "show", "acme") == changed
    names = [item["name"] for item in (await duly.json("tenants", "list"))["items"]]
    assert names == ["acme", "default", "other"]
    table = await duly("tenants", "list")
    assert [line.split()[0] for line in table.splitlines()] == ["name", *names]
    task = await duly.json("tasks", "submit", "x", "--tenant", "acme")
    await duly("tasks", "show", task["id"], code=1)
    assert (await duly.json("tasks", "show", task["id"], "--tenant", "acme"))["type"] == "x"
    assert "stored max" in await duly("tenants", "show", "acme")
    assert (await duly.json("tenants", "suspend", "acme"))["suspended"] is True
    assert (await duly.json("tenants", "resume", "acme"))["suspended"] is False
    await duly("tenants", "set", "acme", code=2)
    await duly("tenants", "set", "acme", "--weight", "heavy", code=2)
    await duly("tenants", "set", "acme", "--stored-max", "-1", code=2)
    assert (await duly.problem("tenants", "create", "acme"))["code"] == "conflict"
    assert (await duly.problem("tenants", "show", "../keys"))["status"] == 404


async def test_a_key_is_shown_once_rotated_and_revoked(duly: CommandLine, front: Front) -> None:
    """A key that is printed again by a list ends up in somebody's log."""
    made = await duly.json(
        *("keys", "create", "ci", "--role", "producer", "--type", "a", "--expires-in", "90d")
    )
    assert (await duly.json("keys", "limit", made["id"], "50"))["request_rate"] == 50
    assert (await duly.json("keys", "limit", made["id"], "none"))["request_rate"] is None
    assert (made["role"], made["types"], made["reach"]) == ("producer", ["a"], "tenant")
    listed = await duly("keys", "list", "--json")
    assert made["id"] in listed
    assert made["key"] not in listed
    text = await duly("keys", "rotate", made["id"], "--grace", "5m")
    assert "not shown again" in duly.said_on_errors
    key = text.splitlines()[0].split()[1]
    duly.use_key(key)
    assert (await duly.json("tasks", "submit", "a"))["type"] == "a"
    assert (await duly.problem("keys", "list"))["code"] == "forbidden"
    duly.use_key(front.admin)
    new_id = key.split("_")[1]
    assert (await duly.json("keys", "revoke", new_id))["revoked_at"] is not None
    assert (await duly.problem("keys", "rotate", new_id))["code"] == "conflict"
    wide = await duly.json("keys", "create", "ops", "--role", "operator", "--installation")
    assert wide["reach"] == "installation"
    assert (await duly.json("keys", "create", "s", "--role", "worker", "--signing"))["signing"]
    await duly("keys", "create", "ci", code=2)
    await duly("keys", "create", "ci", "--role", "king", code=2)


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("ci",), "Missing option '--role'."),
        (("--role", "producer"), "Missing argument 'NAME'."),
        (("--first", "--role", "producer"), "--first makes an admin's key, and takes no role"),
        (("--first", "--tenant", "acme"), "--first makes an admin's key, and takes no tenant"),
    ],
)
async def test_a_first_key_and_another_key_are_asked_for_differently(
    duly: CommandLine, arguments: tuple[str, ...], missing: str
) -> None:
    """The first key of an installation is an admin's: nobody may think it was narrowed."""
    problem = await duly.problem("keys", "create", *arguments, code=2)
    assert problem["detail"] == missing


async def test_a_key_is_read_from_a_file_and_never_repeated(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """What stands on a command line is seen by every user of the machine."""
    (tmp_path / "key").write_text(front.producer + "\n")
    duly.use_key("wrong")
    await duly("tasks", "list", code=1)
    assert duly.said_on_errors.startswith("duly: unauthenticated: ")
    await duly("tasks", "list", "--api-key", f"@{tmp_path / 'key'}")
    await duly("tasks", "list", "--api-key", f"@{tmp_path / 'none'}", code=2)
    for wrong in ("duly_secret\nx", "duly_sécret"):
        await duly("tasks", "list", "--api-key", wrong, code=2)
        assert "cret" not in duly.said_on_errors


async def test_a_task_type_is_described_obeyed_and_forgotten(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """A schema that was not stored lets the payload through that it was written against."""
    schema = {"type": "object", "required": ["to"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    key = (await duly.json("keys", "list"))["items"][0]["id"]
    put = await duly.json(
        *("types", "set", "mail", "--schema", f"@{tmp_path / 'schema.json'}"),
        *("--defaults", '{"priority": 8}', "--key", key),
    )
    assert (put["schema"], put["defaults"], put["keys"]) == (schema, {"priority": 8}, [key])
    assert await duly.json("types", "show", "mail") == put
    (item,) = (await duly.json("types", "list"))["items"]
    assert item == put
    assert "mail" in await duly("types", "list")
    assert (await duly.json("types", "set", "mail", "--no-keys"))["keys"] == []
    assert await duly("types", "delete", "mail") == "mail deleted\n"
    assert (await duly.problem("types", "delete", "mail"))["code"] == "not_found"
    await duly("types", "set", "mail", "--key", key, "--no-keys", code=2)
    await duly("types", "set", "mail", "--schema", "{", code=2)
    refused = await duly.problem("types", "set", "mail", "--schema", '{"type": 7}')
    assert refused["errors"][0]["pointer"] == "/schema"


async def test_a_type_a_pool_and_a_tenant_are_paused_and_resumed(duly: CommandLine) -> None:
    """An operator who finds it paused must see by whom and why."""
    for what in (("type", "mail"), ("pool", "slow"), ("tenant",)):
        made = await duly.json("pauses", "pause", *what, "--reason", "the provider is down")
        assert (made["kind"], made["reason"]) == (what[0], "the provider is down")
    assert len((await duly.json("pauses", "list"))["items"]) == 3
    assert "the provider is down" in await duly("pauses", "list")
    for what in (("type", "mail"), ("pool", "slow"), ("tenant",)):
        assert await duly("pauses", "resume", *what) == f"{' '.join(what)} is resumed\n"
    assert await duly("pauses", "list") == ""
    assert (await duly.problem("pauses", "resume", "tenant"))["code"] == "not_found"
    await duly("pauses", "pause", "tenant", code=2)
    await duly("pauses", "pause", "type", "--reason", "x", code=2)
    await duly("pauses", "pause", "tenant", "acme", "--reason", "x", code=2)


async def test_nodes_slots_and_workers_are_listed(duly: CommandLine, front: Front) -> None:
    """The first look when nothing runs: is anybody there?"""
    assert await duly("nodes", "list") == ""
    assert duly.said_on_errors == "no nodes\n"
    slots = (await duly.json("nodes", "slots", "--limit", 1000))["items"]
    assert len(await lines(duly, "nodes", "slots", "--limit", 1000)) == (
        len(slots) + 1 if slots else 0
    )
    lease = {"worker_id": "w1", "pools": ["default"], "max": 1, "wait_s": 0}
    assert (await front.call("POST", "/v1/worker/lease", lease, key=front.worker)).status == 200
    (worker,) = (await duly.json("workers", "list"))["items"]
    assert (worker["id"], worker["pools"]) == ("w1", ["default"])
    assert "w1" in await duly("workers", "list")
    duly.use_key(front.producer)
    assert (await duly.problem("nodes", "list"))["code"] == "forbidden"


async def lines(duly: CommandLine, *arguments: object) -> list[str]:
    return (await duly(*arguments)).splitlines()


def test_what_can_be_chosen_is_all_there_is() -> None:
    """The command line may not import the server's lists, so a new value is easily forgotten."""
    assert set(ROLES) == set(Access)
    assert set(KINDS) == set(PauseKind)
