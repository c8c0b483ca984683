"""How a key is written: what was made is read again, and nothing else is."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.api_keys import ALPHABET, draw_key, is_key_id, read_key_text
from duly.domain.limits import API_KEY_ID_PATTERN


@given(st.integers(0, 2**64))
def test_a_key_that_was_made_is_read_again(seed: int) -> None:
    """Refused by its own check characters, it would open nothing."""
    made = draw_key(Random(seed))
    assert read_key_text(str(made)) == made
    assert is_key_id(made.id)
    assert API_KEY_ID_PATTERN.fullmatch(made.id)
    assert len(str(made)) == 64


@given(st.integers(0, 2**64), st.integers(5, 63), st.sampled_from(ALPHABET + "_A\x00é\ud800"))
def test_one_character_changed_is_noticed(seed: int, at: int, other: str) -> None:
    """A typing mistake is the commonest unknown key."""
    text = str(draw_key(Random(seed)))
    if text[at] != other:
        assert read_key_text(text[:at] + other + text[at + 1 :]) is None


@given(st.text(max_size=80))
def test_other_text_is_no_key(text: str) -> None:
    """Whatever is sent is read without an error."""
    assert read_key_text(text) is None
    assert read_key_text("duly_" + text) is None
    assert not is_key_id(text)
