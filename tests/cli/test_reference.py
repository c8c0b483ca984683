"""What is written about the command line is what it does."""

import re

from tests.cli_reference import REFERENCE, make_reference
from tests.tidy.markdown import blocks

SECRET = re.compile(r"duly_[a-z0-9]+_[a-z0-9]+|--api-key (?!@)")


def test_the_reference_is_what_the_commands_say() -> None:
    """A flag that is documented and gone, or there and not documented, is found out by users."""
    assert REFERENCE.read_text("utf-8") == make_reference(), "run python -m tests.cli_reference"


def test_no_page_puts_a_key_on_a_command_line() -> None:
    """What a sample shows is copied, and then seen by every user of the machine."""
    for block in blocks("console", "sh", "bash"):
        assert not SECRET.search(block.text), block.where
