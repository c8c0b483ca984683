"""`duly dashboard`: a link to the dashboard that signs a browser in, once."""

import webbrowser

import click

from duly.cli.api_session import ApiSession, over_api


@click.command("dashboard")
@click.option("--open", "opens", is_flag=True, help="Open it in this machine's browser.")
@over_api
def command(api: ApiSession, opens: bool) -> None:
    """Print a link to the dashboard. It signs a browser in as this API key, once, within 15
    minutes; the session then lasts 12 hours, or until the key is revoked.
    """
    made = api.ask("POST", "/v1/session/links", {})
    url = f"{api.connection.server.url.rstrip('/')}/{made['fragment']}"
    api.show(
        {"url": url, "expires_at": made["expires_at"]}, lambda answer: click.echo(answer["url"])
    )
    if opens and not webbrowser.open(url):
        click.echo("no browser was found on this machine; open the link elsewhere", err=True)
