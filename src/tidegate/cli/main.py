"""The command line. Each command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate import __version__
from tidegate.cli.tree import Tree
from tidegate.program import QuickEnd, starting

app = typer.Typer(
    name="tidegate",
    cls=Tree,
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


def main() -> None:
    """Run the command line."""
    end = QuickEnd()
    starting()
    try:
        app()
    except SystemExit as wanted:
        end.with_code(wanted.code)
        raise


if __name__ == "__main__":
    main()
