"""The command tree. Each command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Context
from typer.core import TyperArgument

from tidegate import __version__
from tidegate.cli import capture, changefeed, consumer, quarantine, topic, upstream
from tidegate.cli.compare import compare
from tidegate.cli.peek import peek
from tidegate.cli.replay import replay
from tidegate.cli.server import server
from tidegate.cli.simulate import simulate
from tidegate.cli.verify import verify


class _Argument(TyperArgument):
    """An argument that shows its help.

    From click 8.5 on, click's constructor also sets `help`, to nothing. Setting it again is no solution:
    click would list the argument a second time, because typer lists it already.
    """

    def __init__(self, *, help: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self._help_text = help

    def get_help_record(self, ctx: Context) -> Any:
        self.help = self._help_text
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = None


# typer creates the arguments of commands from this class, and has no option to choose another one.
vars(typer.main)["TyperArgument"] = _Argument

app = typer.Typer(
    name="tidegate",
    help="Change data capture for TiDB and TiKV, with its data pipeline on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(envvar="TIDEGATE_CA", help="TLS to PD and TiKV: the certificate of the cluster's CA."),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(envvar="TIDEGATE_CERT", help="TLS: the certificate of this process.")
    ] = None,
    key: Annotated[Path | None, typer.Option(envvar="TIDEGATE_KEY", help="TLS: its private key.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEGATE_TOKEN_FILE",
            help="A file with the API's token: a server requires it, and clients send it.",
        ),
    ] = None,
) -> None:
    """Change data capture for TiDB and TiKV, with its data pipeline on Spark."""
    if token_file:
        os.environ["TIDEGATE_TOKEN_FILE"] = str(token_file.absolute())
    if ca or cert or key:
        from tidegate.cli.client import reported
        from tidegate.errors import InvalidInput
        from tidegate.tls import Tls

        with reported():
            if ca is None:
                raise InvalidInput("a certificate is given without the CA's", fix="give --ca, too")
            Tls(ca, cert, key).into(os.environ)


app.add_typer(upstream.app, name="upstream")
app.command()(server)
app.add_typer(capture.app, name="capture")
app.add_typer(changefeed.app, name="changefeed")
app.command()(peek)
app.add_typer(topic.app, name="topic")
app.add_typer(consumer.app, name="consumer")
app.add_typer(quarantine.app, name="quarantine")
app.command()(compare)
app.command()(verify)
app.command()(simulate)
app.command()(replay)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
