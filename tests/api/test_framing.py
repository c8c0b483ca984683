"""Which bodies are refused before they are read: found quickly, and as exactly as by looking at
every member."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.api.json_body import DEPTH_MAX, check_framing, count_names, is_written_once
from duly.api.problems import ApiProblem

NAMES = st.sampled_from(["a", "b", "", '":', '" ', "\\", '\\"', ":", '{"a":1}', "\n", "ä"])
SPACES = st.sampled_from(["", "", "", " ", "\n", "\t", "\r"])


class Members(list[tuple[str, Any]]):
    """An object as it is written, with its members in order and perhaps one of them twice."""


DOCUMENTS = st.recursive(
    st.none() | st.integers(0, 9) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=3).map(Members)
    ),
    max_leaves=12,
)


def written(document: Any, space: st.DataObject) -> str:
    gap = space.draw(SPACES)
    if isinstance(document, Members):
        inside = f"{gap},{gap}".join(
            f"{json.dumps(name)}{gap}:{gap}{written(value, space)}" for name, value in document
        )
        return f"{{{gap}{inside}{gap}}}"
    if isinstance(document, list):
        return f"[{gap}{f'{gap},{gap}'.join(written(item, space) for item in document)}{gap}]"
    return json.dumps(document)


def has_twice(document: Any) -> bool:
    if isinstance(document, Members):
        names = [name for name, _ in document]
        return len(set(names)) < len(names) or any(has_twice(value) for _, value in document)
    return isinstance(document, list) and any(has_twice(item) for item in document)


@given(DOCUMENTS, st.data())
def test_a_member_twice_is_refused_and_nothing_else(document: Any, space: st.DataObject) -> None:
    """Two readers that read it differently, or a sound body that is refused for its spaces."""
    body = written(document, space).encode()
    if has_twice(document):
        with pytest.raises(ApiProblem, match="two members"):
            check_framing(body)
    else:
        check_framing(body)


@pytest.mark.parametrize("space", [" ", "\n", "\r", "\t"])
def test_a_member_twice_is_not_hidden_by_a_space(space: str) -> None:
    """Counted by its colon right after the quote, the second one would not be seen."""
    with pytest.raises(ApiProblem, match="two members"):
        check_framing(f'{{"a":1,"a"{space}:2}}'.encode())


def test_what_programs_usually_write_needs_no_closer_look() -> None:
    """Looking at every member costs more than everything else that is done with a body."""
    document = {"tasks": [{"type": "a.b", "payload": {"x": "y", "n": [1, {"m": None}]}}] * 3}
    for separators in ((",", ":"), (", ", ": ")):
        body = json.dumps(document, separators=separators).encode()
        assert is_written_once(body, count_names(document))


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_a_body_may_be_nested_so_deep_and_no_deeper(pair: str) -> None:
    """What is deeper ends the reader of somebody who reads it recursively."""

    def nested(depth: int) -> bytes:
        opening = "[" if pair == "[]" else '{"a":'
        return (opening * (depth - 1) + pair + pair[1] * (depth - 1)).encode()

    check_framing(nested(DEPTH_MAX))
    check_framing(b'"' + b"[" * 1000 + b'"')
    for depth in (DEPTH_MAX + 1, 10_000):
        with pytest.raises(ApiProblem, match=r"nested|recursion"):
            check_framing(nested(depth))
