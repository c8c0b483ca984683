"""The reference of the command line, made from the commands themselves: `python -m
tests.cli_reference` writes it to docs/reference/cli.md, and a test fails when it is stale."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from duly.cli.main import COMMANDS, group

REFERENCE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEADER = """# The command line

Every command of `duly`, made from the program itself by `python -m tests.cli_reference`.
How to use them: [Use the command line](../how-to/use-the-command-line.md).

Exit codes: 0 done, 1 refused or failed, 2 usage or configuration. An error is one line on standard
error; with `--json` it is a JSON problem there, and standard output has nothing but the answer.
Durations are seconds or have a unit: `90`, `90s`, `5m`, `2h`, `1d`. Instants are RFC 3339 with an
offset. JSON is given as an argument, as `@FILE`, or as `-` for standard input.
"""


def make_reference() -> str:
    context = click.Context(group, info_name="duly")
    sections = [HEADER]
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        sections += sections_of(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(sections)


def sections_of(command: click.Command, context: click.Context) -> Iterator[str]:
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    yield f"{level} {context.command_path}\n\n{described(command)}"
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from sections_of(inner, click.Context(inner, info_name=name, parent=context))
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {pieces}\n```\n"
    rows = [
        f"| `{cell(', '.join(record[0].split(', ')))}` | {cell(record[1])} |"
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
    ]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])


def described(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b\n")
            paragraphs.append(f"```text\n{lines}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    text = make_reference()
    is_new = not REFERENCE.exists() or REFERENCE.read_text("utf-8") != text
    REFERENCE.parent.mkdir(exist_ok=True)
    REFERENCE.write_text(text, "utf-8")
    sys.stdout.write(f"{REFERENCE.name} is {'new' if is_new else 'unchanged'}\n")


if __name__ == "__main__":
    main()
