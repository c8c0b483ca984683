"""`duly alerts`: the rules for Prometheus and the dashboard for Grafana that come with duly."""

from pathlib import Path

import click
import msgspec

from duly.cli.options import json_flag
from duly.cli.output import note
from duly.observability import FILES


@click.command("alerts")
@click.argument("name", type=click.Choice(list(FILES)), default="alerts")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write all files there instead.",
)
@json_flag
def command(name: str, folder: Path | None, as_json: bool) -> None:
    """Print the alerts for Prometheus (alerts), the rules that they need (recording), or a
    dashboard for Grafana (dashboard).

    With --json: one object of the text of each file by its name.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in FILES.values():
            (folder / f"duly-{path.name}").write_text(path.read_text())
            note(f"wrote {folder / f'duly-{path.name}'}")
    elif as_json:
        texts = {path.name: path.read_text() for path in FILES.values()}
        click.echo(msgspec.json.encode(texts).decode())
    else:
        click.echo(FILES[name].read_text(), nl=False)
