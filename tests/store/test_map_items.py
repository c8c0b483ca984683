"""Lists in results: each item as it was written, and a reason where there is no list."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.store.map_items import NoItems, items_at

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@given(items=st.lists(JSON), name=st.text(max_size=5))
def test_items_are_those_of_the_list_as_written(items: list[object], name: str) -> None:
    """An item that was decoded and encoded again may be another: 1.50, or a number of 40 digits."""
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    for text in (json.dumps({name: items}), json.dumps({name: items}, indent=2)):
        assert [json.loads(item) for item in items_at(text, pointer)] == items
    assert items_at(' [ 1.50 , "a" ] ', "") == ["1.50", '"a"']
    assert items_at("[[7], [8, 9]]", "/1") == ["8", "9"]


@pytest.mark.parametrize(
    ("result", "path", "detail"),
    [
        (None, "", "is null, not a list"),
        ('{"a": 1}', "/a", "is a number, not a list"),
        ('"x"', "", "is a text, not a list"),
        ("false", "", "is false, not a list"),
        ('{"a": {}}', "/a", "is an object, not a list"),
        ('{"a": {}}', "/b", "has nothing at /b"),
        ("[1]", "/1", "has nothing at /1"),
        ("[1]", "/x", "has nothing at /x"),
        ("[1]", "/01", "has nothing at /01"),
        ("7", "/0", "has nothing at /0"),
        ('{"a": [1}', "/a", "cannot be read"),
        ("[1", "", "cannot be read"),
        ("[" * 100_000, "", "cannot be read"),
        ("[" * 100_000 + "]" * 100_000, "", "cannot be read"),
    ],
)
def test_what_is_no_list_says_so(result: str | None, path: str, detail: str) -> None:
    """A result is what a handler said; none may crash the process."""
    with pytest.raises(NoItems) as refused:
        items_at(result, path)
    assert refused.value.detail == detail
