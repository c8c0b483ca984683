"""Tables and cards as text: what fits, what is left out, and what is never shortened."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.cli.tables import (
    SHORT_TEXT,
    Column,
    Screen,
    cell_width,
    cut,
    draw_card,
    draw_table,
    folded,
    short_instant,
    take,
)

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
ID = "01a1e1ad-7bb2-79e1-9b6f-ba77a06ae3bb"
PLAIN_80 = Screen(80, is_coloured=False)


def text(name: str, *cells: str) -> Column:
    return Column(name, name, list(cells), is_right=False, is_text=True, is_instant=False)


def whole(name: str, *cells: str) -> Column:
    return text(name, *cells)._replace(is_text=False)


def instant(name: str, *cells: str) -> Column:
    return whole(name, *cells)._replace(is_instant=True)


TASKS = [
    whole("id", ID),
    whole("state", "SCHEDULED"),
    text("type", "invoice.charge.of-a-rather-long-name"),
    instant("run at", "2026-12-24 18:00:00Z"),
    whole("priority", "5"),
]


def test_a_table_that_fits_is_left_as_it_is() -> None:
    """A program that reads it from a pipe counts on every column and every character."""
    for screen in (Screen(None, is_coloured=False), Screen(200, is_coloured=False)):
        drawn = draw_table(TASKS, screen, NOW)
        assert drawn.left_out == []
        assert drawn.lines[1].split() == [
            *(ID, "SCHEDULED", "invoice.charge.of-a-rather-long-name"),
            *("2026-12-24", "18:00:00Z", "5"),
        ]


def test_a_narrow_table_shortens_instants_then_texts_then_leaves_out_columns() -> None:
    """A line that wraps makes every line of the table unreadable; half an id is useless."""
    drawn = draw_table(TASKS, PLAIN_80, NOW)
    assert drawn.left_out == ["priority"]
    assert [len(line) <= 80 for line in drawn.lines] == [True, True]
    assert drawn.lines[1].startswith(f"{ID}  SCHEDULED  invoice.char")
    assert drawn.lines[1].endswith("…  12-24 18:00Z")
    drawn = draw_table(TASKS, PLAIN_80, NOW, leave_out=["state", "priority"])
    assert drawn.left_out == ["state"]
    drawn = draw_table(TASKS, Screen(10, is_coloured=False), NOW)
    assert drawn.lines == ["id", ID], "one column stays, whatever the width"


@given(
    st.lists(
        st.tuples(st.text(max_size=40), st.sampled_from([text, whole, instant])),
        min_size=1,
        max_size=8,
    ),
    st.integers(45, 120),
)
def test_no_line_is_wider_than_the_terminal(cells: list[tuple[str, object]], width: int) -> None:
    """Wide characters count twice and accents not at all: a line one column too wide wraps."""
    columns = [
        make(f"c{place}", " ".join(each.split()))  # type: ignore[operator]
        for place, (each, make) in enumerate(cells)
    ]
    drawn = draw_table(columns, Screen(width, is_coloured=False), NOW)
    if len(columns) - len(drawn.left_out) > 1:
        assert all(cell_width(line) <= width for line in drawn.lines)


def test_an_instant_is_shortened_to_what_tells_it_apart() -> None:
    """ "18:00" alone would be taken for today's."""
    assert short_instant("2026-11-18 18:00:05Z", NOW) == "18:00:05Z"
    assert short_instant("2026-12-24 18:00:05Z", NOW) == "12-24 18:00Z"
    assert short_instant("2027-01-01 00:00:00Z", NOW) == "2027-01-01"
    assert short_instant("-", NOW) == "-"


def test_colours_are_shown_only_where_they_are_asked_for() -> None:
    """A colour's code in a pipe becomes part of the id that the next program reads."""
    (_, plain) = draw_table(TASKS[:2], PLAIN_80, NOW).lines
    (head, coloured) = draw_table([TASKS[0], whole("state", "FAILED")], Screen(80, True), NOW).lines
    assert "\x1b" not in plain
    assert head.startswith("\x1b[1m")
    assert "\x1b[31mFAILED\x1b[0m" in coloured


@pytest.mark.parametrize(
    ("given_text", "width", "expected"),
    [
        ("short", 10, "short"),
        ("a long text", 6, "a lon…"),
        ("表表表表", 5, "表表…"),
        ("ééé", 2, "é…"),
    ],
)
def test_a_text_is_cut_by_what_it_takes_on_the_screen(
    given_text: str, width: int, expected: str
) -> None:
    """Counted in characters, a line of Chinese would be twice as wide as the terminal."""
    assert cut(given_text, width) == expected
    assert take("ab", 0) == ""


def test_a_card_folds_long_values_below_their_beginning() -> None:
    """An error text of 8 kB in one line cannot be read, and a cut one says nothing."""
    lines = draw_card({"id": ID, "error": "word " * 30 + "x" * 90}, PLAIN_80)
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith(" " * 7) for line in lines[2:])
    assert "".join(lines[1:]).count("x") == 90
    assert folded("a\nb", None) == ["a", "b"]
    assert draw_card({}, PLAIN_80) == []
    assert SHORT_TEXT < 80
