"""Named SQL blocks: found by name, never silently lost or doubled."""

from pathlib import Path

import pytest

from duly.store.statements import Statements, parse_statements, statements_beside

TWO = """
-- name: first_one
-- Why it exists.
SELECT 1

-- name: second_one
-- Why this one does.
SELECT 2;
"""


def test_each_block_is_found_by_its_name() -> None:
    """A block cut at the wrong line would send half a statement."""
    blocks = parse_statements(TWO)
    assert blocks == {
        "first_one": "-- Why it exists.\nSELECT 1",
        "second_one": "-- Why this one does.\nSELECT 2;",
    }


def test_two_blocks_of_one_name_are_our_mistake() -> None:
    """The second would silently replace the first."""
    with pytest.raises(AssertionError, match="share a name"):
        parse_statements(TWO.replace("second_one", "first_one"))


def test_an_unknown_name_is_named() -> None:
    """A None in place of a statement would fail far away, in the driver."""
    with pytest.raises(AttributeError, match="no statement named third_one"):
        _ = Statements(parse_statements(TWO)).third_one


def test_statements_come_from_the_file_beside_the_module(tmp_path: Path) -> None:
    """Reading relative to the working directory would break an installed duly."""
    (tmp_path / "things.sql").write_text(TWO)
    assert statements_beside(str(tmp_path / "things.py")).second_one.endswith("SELECT 2;")


def test_a_fragment_stands_where_it_is_included() -> None:
    """A move that is written in two places is guarded in one of them."""
    text = "-- name: one\n-- Why.\nSELECT\n-- include: lease.columns timer=held\n  FROM held\n"
    assert "held.lease_until" in parse_statements(text)["one"]
    assert "-- include" not in parse_statements(text)["one"]


@pytest.mark.parametrize("given", ["", " timer=a other=b"])
def test_a_fragment_takes_just_its_parameters(given: str) -> None:
    """A forgotten one would reach the server as `:timer`."""
    with pytest.raises(AssertionError, match=r"lease\.columns is given"):
        parse_statements(f"-- name: one\n-- Why.\n-- include: lease.columns{given}\n")
