"""`duly completion`: what a shell needs to complete duly's commands and flags."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_DULY_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell, to be read by its startup file:

    \b
    bash  duly completion bash > ~/.local/share/bash-completion/completions/duly
    zsh   duly completion zsh > a folder of $fpath, as _duly
    fish  duly completion fish > ~/.config/fish/completions/duly.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "duly", COMPLETE_VARIABLE).source())
