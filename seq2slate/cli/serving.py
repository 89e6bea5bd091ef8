"""The commands of the re-ranking service: serve, API keys, the log, experiments, and simulated traffic."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from seq2slate.cli.options import CLICK_MODEL_OPTIONS, USERS, AsJson, Seed, derived_from
from seq2slate.data.files import read
from seq2slate.errors import UsageError
from seq2slate.log.backend import Durability
from seq2slate.simulation.click_models import click_model

app = typer.Typer(rich_markup_mode=None)
log_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The log of the re-ranking service.")
app.add_typer(log_app, name="log")
keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The API keys of the re-ranking service.")
app.add_typer(keys_app, name="keys")
LogUrl = Annotated[str, typer.Argument(help="A SQLite file, or postgresql://user@host/database.")]
KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The key file, which has only hashes.")]


@app.command()
def serve(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL_DIR", help="Folder of a trained model; for arms that name none.")
    ] = None,
    experiment: Annotated[Path | None, typer.Option(help="Arms and their weights: a .toml or .json file.")] = None,
    log: Annotated[str, typer.Option(help="A SQLite file, or postgresql://user@host/database.")] = "seq2slate-log.db",
    durability: Annotated[
        Durability,
        typer.Option(help="Acknowledged writes survive the end of the process, or a power failure, too."),
    ] = "process",
    log_failure: Annotated[
        Literal["serve", "refuse"],
        typer.Option(help="Without the log, serve the base order without a slate_id, or refuse with 503."),
    ] = "serve",
    host: Annotated[str, typer.Option(help="Address to bind; any but a loopback address needs --keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind; 0 takes a free one.")] = 8080,
    keys: Annotated[Path | None, typer.Option(help="File of API keys, which are then required.")] = None,
    deadline_ms: Annotated[
        float, typer.Option(min=0.001, help="For the model; the base order is served if it takes longer.")
    ] = 100,
    log_deadline_ms: Annotated[
        float, typer.Option(min=1, help="For a commit; the log has failed if it takes longer.")
    ] = 1000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the model; as many as cores, up to 4, if not given.")
    ] = None,
    max_items: Annotated[int, typer.Option(min=1, help="Candidates of a list; more get 422.")] = 1000,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Size of a request's body; a larger one gets 413.")] = 4
    << 20,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Requests in flight; more get 429.")] = 256,
    max_values: Annotated[
        int, typer.Option(min=1, help="Numbers, texts and fields of a request; more get 422.")
    ] = 250_000,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that share the address and the log; limits and threads are of each.")
    ] = 1,
) -> None:
    """Serve a model, or an experiment with several, over HTTP, and log impressions and clicks."""
    try:
        from seq2slate.serving.middleware import Limits
        from seq2slate.serving.server import ServerConfig, run_server
        from seq2slate.serving.service import Timeouts
        from seq2slate.serving.workers import run_workers
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed: pip install 'seq2slate[serve]'") from missing

    timeouts = Timeouts(deadline_ms, log_deadline_ms, log_failure)
    limits = Limits(max_body_bytes, max_items, max_in_flight, max_values)
    config = ServerConfig(model, experiment, log, durability, host, port, keys, threads, timeouts, limits, workers)
    (run_server if workers == 1 else run_workers)(config, lambda address: typer.echo(f"serving on {address}"))


@keys_app.command("add")
def add_key(
    file: KeysFile,
    scope: Annotated[
        Literal["serve", "admin"], typer.Option(help="serve: slates and clicks; admin: everything else.")
    ] = "serve",
    note: Annotated[str, typer.Option(help="For people: whose key it is.")] = "",
) -> None:
    """Create a key and print it, once: the file has only its hash."""
    from seq2slate.serving import keys

    typer.echo(keys.add_key(file, scope, note))


@keys_app.command("list")
def print_keys(file: KeysFile) -> None:
    """Print the id, scope, time and note of every key."""
    from seq2slate.serving import keys

    for key in keys.read_keys(file):
        created = datetime.fromtimestamp(key.created, UTC).isoformat(timespec="seconds")
        typer.echo(f"{key.id}  {key.scope:5}  {created}  {key.note}")


@keys_app.command("revoke")
def revoke_key(file: KeysFile, key: Annotated[str, typer.Argument(metavar="ID", help="As `list` prints it.")]) -> None:
    """Revoke a key; the next request with it is refused."""
    from seq2slate.serving import keys

    keys.revoke_key(file, key)
    typer.echo(f"{file}: {key} is revoked")


@app.command()
def experiment(
    log: LogUrl,
    name: Annotated[
        str | None, typer.Option("--experiment", help="Name of the experiment; that of the latest slate if not given.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="The control; as the service logged it if not given."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="ARM=WEIGHT,…", help="Weights of the assignment; as the service logged them if not given."
        ),
    ] = None,
    expected_lift: Annotated[
        float,
        typer.Option(
            help="The relative effect that one hopes to find, chosen beforehand; tunes the always-valid intervals."
        ),
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Analyse a live experiment: click-through rates, and differences with always-valid intervals."""
    from seq2slate.experiments.analysis import analyse, analysis_tables, parse_weights
    from seq2slate.log.impression_log import open_log

    shares = None if weights is None else parse_weights(weights)
    with open_log(log, create=False) as store:
        if name is None:
            latest = store.recent(1)
            if not latest:
                raise UsageError(f"{store.name}: the log has no slates, so it names no experiment: give --experiment")
            name = latest[0].experiment
        counts, definition = store.counts(name), store.definition(name)
    models = {} if definition is None else definition.models
    if definition is not None:
        control = control or (definition.control if definition.control in counts.arms else None)
        shares = shares or (dict(definition.weights) if set(counts.arms) <= set(definition.weights) else None)
    result = analyse(counts, control=control, weights=shares, expected_lift=expected_lift, models=models)
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(analysis_tables(result))


@log_app.command("export")
def export_log(
    log: LogUrl,
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    since: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME|FILE",
            help="Skip impressions before this time, or what an earlier export covers; may be given once for each.",
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Skip impressions from this time on.")] = None,
    arm: Annotated[str | None, typer.Option(help="Export only this arm.")] = None,
) -> None:
    """Export the impressions of a log as lists to train on, with the clicks as labels.

    A TIME is like 2026-01-31T12:00, in UTC unless it says otherwise, or in seconds since 1970. With an earlier export
    as --since, this one has every slate that was committed after it began, once.
    """
    from seq2slate.log.export import export as write_log
    from seq2slate.log.export import parse_time, sequence_of
    from seq2slate.log.impression_log import open_log
    from seq2slate.log.reading import ImpressionFilter

    if out.suffix != ".parquet":
        raise UsageError(f"{out}: a log is exported to a .parquet file")
    chosen = ImpressionFilter(until=None if until is None else parse_time(until), arm=arm)
    for text in since or ():
        is_file = text.endswith(".parquet")
        chosen = replace(chosen, after=sequence_of(text)) if is_file else replace(chosen, since=parse_time(text))
    with open_log(log, create=False) as store:
        total = write_log(store, out, chosen)
    typer.echo(f"{out}: {total:,} lists")


@log_app.command("check")
def check_log(log: LogUrl) -> None:
    """Look for damage in a log: in its structure, its rows and its counts; the exit code is 1 if there is any.

    The log may be in use. Rows that versions without checksums have written count as unchecked.
    """
    from seq2slate.log.check import check_log as check
    from seq2slate.log.impression_log import backend_for

    backend = backend_for(log, create=False)
    report = check(backend)
    for problem in report.problems:
        typer.echo(f"{backend.name}: {problem}")
    if report.damaged > len(report.problems):
        typer.echo(f"{backend.name}: and {report.damaged - len(report.problems):,} problems more")
    found = f"{backend.name}: {report.slates:,} slates, {report.clicks:,} clicks"
    unchecked = f"; {report.unchecked:,} rows of an earlier version have no checksum" if report.unchecked else ""
    if report.damaged:
        typer.echo(f"{found}: damaged{unchecked}. Keep a copy, then restore a backup; what is not named is whole")
        raise typer.Exit(1)
    typer.echo(f"{found}: no damage{unchecked}")


@log_app.command("prune")
def prune_log(
    log: LogUrl,
    before: Annotated[
        str,
        typer.Option(metavar="TIME", help="Delete impressions before this time: 2026-01-31, or seconds since 1970."),
    ],
) -> None:
    """Delete old impressions and their clicks from a log; the counts of the experiments stay as they are."""
    from seq2slate.log.export import parse_time
    from seq2slate.log.impression_log import open_log

    with open_log(log, create=False) as store:
        total = store.prune(parse_time(before))
    typer.echo(f"{store.name}: {total:,} slates deleted")


@app.command()
@derived_from(CLICK_MODEL_OPTIONS)
def traffic(
    url: Annotated[str, typer.Argument(help="The address of the service, as `serve` prints it.")],
    data: Annotated[str, typer.Argument(help="Lists with grades, in base order.")],
    user: Annotated[str, typer.Option(help=f"The click model of the visitors: {USERS}")] = "diverse",
    requests: Annotated[int, typer.Option(min=1, help="Slates to request in all.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent visitors.")] = 8,
    k: Annotated[int, typer.Option(min=1, help="Slots of a slate.")] = 10,
    units: Annotated[
        int | None, typer.Option(min=1, help="Distinct visitors; a quarter of the requests if not given.")
    ] = None,
    seed: Seed = 0,
    key: Annotated[str | None, typer.Option(envvar="SEQ2SLATE_KEY", help="API key, if the service needs one.")] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Send simulated visitors to a running service: they request slates, click, and count what they saw."""
    from seq2slate.serving.traffic import send_traffic

    visitor = click_model(user, **options)
    result = send_traffic(
        url, read(data), visitor, requests=requests, concurrency=concurrency, k=k, units=units, seed=seed, key=key
    )
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(result.table())
