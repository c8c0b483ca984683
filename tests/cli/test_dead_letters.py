"""`duly dead-letters` against a real front door: looked at, replayed, purged."""

import pytest

from duly.cli.dead_letters import REASONS
from duly.domain.limits import LETTERS_AT_ONCE_MAX
from duly.domain.states import FailureReason
from tests.api.conftest import Front
from tests.api.letters import fail, fail_many
from tests.cli.conftest import CommandLine


async def test_letters_are_listed_grouped_and_shown(duly: CommandLine, front: Front) -> None:
    """A failure that no command shows is one that nobody mends."""
    letter = await fail(front, "boom", type="a", payload='{"n": 1}')
    await fail_many(front, 2, "bang", type="b")
    page = await duly.json("dead-letters", "list", "--type", "a")
    assert [item["id"] for item in page["items"]] == [str(letter)]
    groups = (await duly.json("dead-letters", "groups"))["items"]
    assert [(each["count"], each["example"]) for each in groups] == [(2, "bang"), (1, "boom")]
    mark = groups[0]["fingerprint"]
    same = (await duly.json("dead-letters", "list", "--fingerprint", mark))["items"]
    assert {item["type"] for item in same} == {"b"}
    assert (await duly.json("dead-letters", "list", "--replayed"))["items"] == []
    assert len((await duly.json("dead-letters", "list", "--not-replayed"))["items"]) == 3
    shown = await duly.json("dead-letters", "show", letter)
    assert (shown["payload"], shown["error"]) == ({"n": 1}, "boom")
    assert str(letter) in await duly("dead-letters", "list")
    assert "bang" in await duly("dead-letters", "groups")
    assert '{"n":1}' in await duly("dead-letters", "show", letter)
    assert await duly("dead-letters", "list", "--reason", "poison") == ""
    assert duly.said_on_errors == "no dead letters\n"


async def test_one_letter_is_replayed_once(duly: CommandLine, front: Front) -> None:
    """Two people who press the button at once must not run it twice."""
    letter = await fail(front)
    task = await duly.json("dead-letters", "replay", letter)
    assert task["replay_of"] == str(letter)
    problem = await duly.problem("dead-letters", "replay", letter)
    assert (problem["code"], task["id"] in problem["detail"]) == ("conflict", True)


async def test_many_are_replayed_in_bites_spread_over_time(duly: CommandLine, front: Front) -> None:
    """A thousand at once is the flood that broke it before; and the rest must not be forgotten."""
    count = LETTERS_AT_ONCE_MAX + 300
    await fail_many(front, count, type="a")
    other = await fail(front, type="b")
    look = await duly.json("dead-letters", "replay", "--type", "a", "--dry-run")
    assert (look["matched"], look["done"], look["has_more"]) == (LETTERS_AT_ONCE_MAX, 0, True)
    await duly("dead-letters", "replay", "--type", "a", code=2)
    assert "--yes" in duly.said_on_errors
    done = await duly.json("dead-letters", "replay", "--type", "a", "--rate", 100, "--yes")
    assert (done["done"], done["has_more"]) == (count, False)
    (row,) = await front.database.fetch(
        "SELECT extract(epoch FROM max(due_at) - min(due_at))::float AS span FROM duly.timers"
    )
    assert row["span"] == pytest.approx(count / 100, rel=0.1)
    rest = (await duly.json("dead-letters", "list", "--not-replayed"))["items"]
    assert [item["id"] for item in rest] == [str(other)]


async def test_letters_are_purged_by_id_filter_or_all(duly: CommandLine, front: Front) -> None:
    """What is purged is gone: the filter must mean what it says."""
    one, two, three = await fail_many(front, 3, type="a")
    await fail_many(front, 2, type="b")
    assert await duly("dead-letters", "purge", one) == "1 dead letters purged\n"
    assert (await duly.json("dead-letters", "purge", one, two, code=1))["done"] == 1
    await duly("dead-letters", "replay", three)
    looked = await duly("dead-letters", "purge", "--replayed", "--dry-run")
    assert looked == "1 dead letter matches\n"
    assert (await duly.json("dead-letters", "purge", "--replayed", "--yes"))["done"] == 1
    assert (await duly.json("dead-letters", "purge", "--all", "--yes"))["done"] == 2
    assert await duly("dead-letters", "purge", "--all", "--yes") == "no dead letter matches\n"


async def test_what_is_refused_is_told(duly: CommandLine, front: Front) -> None:
    """A producer who may only look must learn that, and lose nothing."""
    letter = await fail(front)
    for what in ("replay", "purge"):
        await duly("dead-letters", what, code=2)
        await duly("dead-letters", what, letter, "--all", code=2)
    duly.use_key(front.producer)
    assert (await duly.problem("dead-letters", "purge", letter))["code"] == "forbidden"
    assert (await duly.problem("dead-letters", "show", front.tenant.id))["code"] == "not_found"
    assert len((await duly.json("dead-letters", "list"))["items"]) == 1


def test_the_reasons_that_can_be_asked_for_are_all_there_are() -> None:
    """The command line may not import the server's list, so a new one is easily forgotten."""
    assert set(REASONS) == set(FailureReason)
