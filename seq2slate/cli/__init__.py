"""The command line: parse, call, print."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from seq2slate import __version__
from seq2slate.cli import learning, serving
from seq2slate.cli.options import INTERRUPTED, Seed
from seq2slate.errors import DataWarning, Seq2SlateError

app = typer.Typer(
    name="seq2slate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Re-rank whole slates: lists in, slates out, with the simulated users and metrics to judge them.",
)
app.add_typer(learning.app)
app.add_typer(serving.app)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"seq2slate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    lists: Annotated[int, typer.Option(min=50, help="Number of lists to generate.")] = 12_000,
    items: Annotated[float, typer.Option(min=5, help="Mean number of items of a list.")] = 40,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for what is left; that of an earlier demo is written anew.")] = Path(
        "seq2slate-demo"
    ),
) -> None:
    """Show what seq2slate does, on lists made on the spot: base order live, a model from its log, an experiment."""
    from seq2slate.demo import run

    run(Console(), n_lists=lists, items=items, seed=seed, out=out)


def main() -> None:
    """Run a command; a user error is printed in one line, with exit code 2, and so is a warning of data."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        _run()


def _show_warning(show: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning of data in one line, and leave others as they are."""
    if issubclass(category, DataWarning):
        typer.echo(f"warning: {message}", err=True)
    else:
        show(message, category, *place)


def _run() -> None:
    try:
        app()
    except Seq2SlateError as error:
        _fail(str(error))
    except OSError as error:  # no space, no permission, no such folder: the system's own words name the file
        _fail(str(error))
    except MemoryError as error:
        _fail(f"out of memory: {error}")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
