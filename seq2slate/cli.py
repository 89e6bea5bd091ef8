"""The command line: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seq2slate import __version__
from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.loading import LEARNERS, RERANKERS, fit_ranker, load_ranker, parse_rankers
from seq2slate.data.clicks import check_grades, label_log, make_user
from seq2slate.data.files import is_split_folder, read, read_split, write, write_split
from seq2slate.data.ranker import reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.data.synthetic import generate
from seq2slate.errors import Seq2SlateError, UsageError
from seq2slate.evaluation.evaluate import evaluate as evaluate_rankers
from seq2slate.metrics import DEFAULT_MEASURES, Measure

app = typer.Typer(
    name="seq2slate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Re-rank whole slates: lists in, slates out, with the simulated users and metrics to judge them.",
)
log_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The log of the re-ranking service.")
app.add_typer(log_app, name="log")
keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The API keys of the re-ranking service.")
app.add_typer(keys_app, name="keys")
LogUrl = Annotated[str, typer.Argument(help="A SQLite file, or postgresql://user@host/database.")]
KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the keys' hashes.")]
Eta = Annotated[float | None, typer.Option(min=0, help="Position i is seen with probability 1 / i^eta.")]
Quantile = Annotated[
    float | None, typer.Option("--q", min=0, max=1, help="Share of the pairs of a list that are similar.")
]
RelevantFrom = Annotated[float | None, typer.Option(help="The lowest grade that is relevant; 2 unless given.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_INTERRUPTED = 130  # the exit code that shells know for Ctrl-C


class UserName(StrEnum):
    """The simulated users."""

    cascade = "cascade"
    diverse = "diverse"
    similar = "similar"
    position = "position"


class Layout(StrEnum):
    """What a row of a Parquet file is."""

    lists = "lists"
    items = "items"


class NoPositives(StrEnum):
    """What a metric says of a list without positives."""

    skip = "skip"
    zero = "zero"
    one = "one"


class PresetName(StrEnum):
    """Choices that belong together."""

    default = "default"
    paper = "paper"
    dlcm = "dlcm"
    prm = "prm"
    setrank = "setrank"


class TargetName(StrEnum):
    """What can be reproduced."""

    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    table4 = "table4"
    figure2 = "figure2"
    figure3 = "figure3"
    timing = "timing"
    all = "all"


class LossName(StrEnum):
    """The losses of a step."""

    cross_entropy = "cross-entropy"
    hinge = "hinge"
    smooth_hinge = "smooth-hinge"
    list_net = "list-net"
    pairwise_logistic = "pairwise-logistic"
    approximate_ndcg = "approximate-ndcg"


class PolicyName(StrEnum):
    """Where slates come from in training."""

    sampling = "sampling"
    greedy = "greedy"
    reinforce = "reinforce"


class DecoderName(StrEnum):
    """How slates are decoded."""

    sequential = "sequential"
    one_step = "one-step"


class DurabilityName(StrEnum):
    """What an acknowledged write to the log survives."""

    process = "process"
    power = "power"


class LogFailure(StrEnum):
    """What to do when the log takes no impression."""

    serve = "serve"
    refuse = "refuse"


class ScopeName(StrEnum):
    """What a key is for."""

    serve = "serve"
    admin = "admin"


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
def synth(
    out: Annotated[Path, typer.Argument(help="File to write; its suffix says the format (.parquet, .jsonl, .txt).")],
    lists: Annotated[int, typer.Option(min=1, help="Number of lists.")] = 1000,
    items: Annotated[float, typer.Option(min=1, help="Mean number of items of a list.")] = 110,
    features: Annotated[int, typer.Option(min=4, help="Number of feature columns.")] = 136,
    seed: Seed = 0,
) -> None:
    """Generate lists shaped like the WEB30K data set, with the true probability of relevance beside them."""
    write(generate(lists, items=items, features=features, seed=seed), out)
    typer.echo(f"{out}: {lists:,} lists")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, a glob, or a folder of files.")],
    out: Annotated[Path, typer.Argument(help="File to write, or folder if IN is a folder with train, valid and test.")],
    layout: Annotated[Layout, typer.Option(help="What a row of a Parquet file is.")] = Layout.lists,
) -> None:
    """Convert between LETOR text, Parquet and JSON lines."""
    if is_split_folder(source):
        write_split(read_split(source), out, layout=layout.value)
        typer.echo(f"{out}: train, valid and test")
        return
    lists = read(source)
    write(lists, out, layout=layout.value)
    typer.echo(f"{out}: {len(lists):,} lists, {lists.n_items:,} items")


@app.command()
def inspect(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, a glob, or a folder of files.")],
    as_json: AsJson = False,
) -> None:
    """Print what a file holds: lists, lengths, labels, and the columns to worry about."""
    parts = read_split(source)._asdict() if is_split_folder(source) else {source: read(source)}
    summaries = {name: summarise(lists) for name, lists in parts.items()}
    if as_json:
        values = {name: summary.as_dict() for name, summary in summaries.items()}
        typer.echo(json.dumps(values if len(values) > 1 else values[source], indent=2))
        return
    for name, summary in summaries.items():
        typer.echo(f"{name}\n{summary}")


@app.command()
def simulate(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Lists with grades, in base order unless --ranker is given.")
    ],
    out: Annotated[Path, typer.Argument(help="File to write, with clicks as labels and the grades kept beside them.")],
    user: Annotated[UserName, typer.Option(help="Who looks at the lists.")] = UserName.diverse,
    eta: Eta = None,
    q: Quantile = None,
    relevant_from: RelevantFrom = None,
    seed: Seed = 0,
    ranker: Annotated[Path | None, typer.Option(help="Folder of the ranker whose order the user sees.")] = None,
) -> None:
    """Let a simulated user click on lists."""
    lists = read(source)
    if ranker is not None:
        lists = reorder_lists(load_ranker(ranker), lists)
    visitor = make_user(user.value, eta=eta, q=q, relevant_from=relevant_from)
    check_grades(visitor, lists)
    clicked = label_log(visitor, lists, seed=seed)
    write(clicked, out)
    clicks = 0 if clicked.labels is None else int(clicked.labels.sum())
    typer.echo(f"{out}: {len(clicked):,} lists, {clicks:,} clicks")


@app.command()
def evaluate(
    data: Annotated[str, typer.Argument(help="Labelled lists, in base order.")],
    ranker: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER, or base, random, ceiling-logged, ceiling-shown; may be given several times."),
    ] = None,
    user: Annotated[UserName | None, typer.Option(help="Show this simulated user the new slates, too.")] = None,
    eta: Eta = None,
    q: Quantile = None,
    relevant_from: RelevantFrom = None,
    measure: Annotated[list[str] | None, typer.Option(help="Such as NDCG@10; may be given several times.")] = None,
    no_positives: Annotated[NoPositives, typer.Option(help="Lists without positives.")] = NoPositives.skip,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare rankers with the base order: metrics, 95% intervals and a paired test."""
    lists = read(data)
    visitor = None
    if user is not None:
        visitor = make_user(user.value, eta=eta, q=q, relevant_from=relevant_from)
        check_grades(visitor, lists)
    rankers = parse_rankers(ranker or ["base"], user=visitor, seed=seed)
    ceilings = [name for name, one in rankers.items() if isinstance(one, LoggedCeiling | ShownCeiling)]
    measures = DEFAULT_MEASURES if measure is None else tuple(Measure.parse(text) for text in measure)
    result = evaluate_rankers(
        rankers,
        lists,
        measures=measures,
        user=visitor,
        ceiling=ceilings,
        seed=seed,
        no_positives=no_positives.value,
    )
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(result.table())


@app.command()
def train(
    data: Annotated[str, typer.Argument(metavar="TRAIN", help="Labelled lists, in base order.")],
    out: Annotated[Path, typer.Option(help="Folder for the trained model.")],
    valid: Annotated[
        str | None, typer.Option(help="Lists that choose the epoch; a tenth of TRAIN if not given.")
    ] = None,
    ranker: Annotated[
        str,
        typer.Option(
            help=f"What to train: seq2slate; {', '.join(RERANKERS)}, which are presets of it; or "
            f"{', '.join(name for name in LEARNERS if name not in RERANKERS)}, which take only --valid and --seed."
        ),
    ] = "seq2slate",
    preset: Annotated[
        PresetName | None, typer.Option(help="Where the choices start from; default unless given.")
    ] = None,
    loss: Annotated[LossName | None, typer.Option(help="The loss of a step.")] = None,
    policy: Annotated[PolicyName | None, typer.Option(help="Where the slates come from that are learned from.")] = None,
    decoder: Annotated[DecoderName | None, typer.Option(help="Place items step by step, or sort once.")] = None,
    k: Annotated[int | None, typer.Option(min=1, help="Only the first k slots count.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the lists, at most.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Lists in a step.")] = None,
    seed: Seed = 0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of PyTorch and the C kernels; as OMP_NUM_THREADS says, or else all cores up to 4."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard scalars.")] = None,
) -> None:
    """Train a model on clicked lists; Ctrl-C stops and keeps what is done."""
    import torch

    from seq2slate.training.fit import TrainingInterruptedError
    from seq2slate.training.train import Choices, hold_out, train_model

    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or min(4, os.cpu_count() or 1))
    lists = read(data)
    chosen = None if valid is None else read(valid)
    if ranker in RERANKERS:
        if preset is not None:
            raise UsageError(f"--ranker {ranker} is a preset itself: leave out --preset")
        preset = PresetName(ranker)
    elif ranker != "seq2slate":
        given = (preset, loss, policy, decoder, k, epochs, learning_rate, batch_size, tensorboard)
        if resume or any(value is not None for value in given):
            raise UsageError(f"the options of a network do not go with --ranker {ranker}")
        learn, choose = (lists, chosen) if chosen is not None else hold_out(lists, seed=seed)
        fit_ranker(ranker, learn, choose, seed=seed).save(out)
        typer.echo(f"{out}: {ranker}, trained on {len(learn):,} lists")
        return
    choices = Choices(preset or PresetName.default, loss, policy, decoder, k, epochs, learning_rate, batch_size, seed)
    try:
        _, history = train_model(lists, chosen, choices, out=out, resume=resume, tensorboard=tensorboard)
    except TrainingInterruptedError as interruption:
        typer.echo(interruption, err=True)
        raise typer.Exit(_INTERRUPTED) from interruption
    typer.echo(
        f"{out}: {history.measure} {history.best:.4f} on the validation lists, in epoch {history.best_epoch + 1}"
    )


@app.command()
def rerank(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model, or of any ranker.")],
    source: Annotated[str, typer.Argument(metavar="IN", help="Lists in base order.")],
    out: Annotated[Path, typer.Argument(help="File for the slates: .parquet or .jsonl.")],
    k: Annotated[int | None, typer.Option(min=1, help="Slots of a slate; all items if not given.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw slates from the model instead of the best.")] = False,
    temperature: Annotated[float, typer.Option(help="Above 1 draws more freely, below 1 less.")] = 1.0,
    seed: Seed = 0,
) -> None:
    """Put lists in a better order: ids out, best first, with the log-probability of each choice."""
    from seq2slate.model.slates import check_slate_file, rerank_lists, write_slates

    check_slate_file(out)
    slates = rerank_lists(load_ranker(model), read(source), k, seed=seed if sample else None, temperature=temperature)
    write_slates(slates, out)
    typer.echo(f"{out}: {slates.num_rows:,} slates")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a trained model.")],
    out: Annotated[Path | None, typer.Option(help="File to write; MODEL_DIR/model.onnx if not given.")] = None,
) -> None:
    """Write a model as one ONNX file, after comparing its slates with the network's on random lists."""
    try:
        from seq2slate.serving.export import export_onnx
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed: pip install 'seq2slate[serve]'") from missing

    target = out or model / "model.onnx"
    parity = export_onnx(model, target)
    typer.echo(f"{target}: {parity}")


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, as `reproduce` writes it.")],
) -> None:
    """Write report.html, one file with tables and pictures of a run, and the pictures beside it."""
    from seq2slate.evaluation.report import write_report

    typer.echo(write_report(run_dir))


@app.command()
def reproduce(
    target: Annotated[TargetName, typer.Argument(help="A table or figure of the paper, its running times, or all.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was interrupted goes on where it was.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Graded lists: a file, a glob, or a folder with train, valid and test; generated if not given."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer lists, fewer epochs, and one seed.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How often everything random is trained.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; as many as cores if not given.")] = None,
) -> None:
    """Make the paper's tables and figures, with intervals, and a report of them."""
    from seq2slate.reproduce.run import reproduce as run
    from seq2slate.reproduce.settings import FULL, QUICK

    settings = QUICK if quick else FULL
    if seeds is not None:
        settings = replace(settings, seeds=seeds)
    try:
        failures = run(target.value, out, settings, data=data, jobs=jobs or os.cpu_count() or 1, console=Console())
    except KeyboardInterrupt as interruption:
        typer.echo(f"interrupted; what is done is kept in {out}, and the same command goes on from there", err=True)
        raise typer.Exit(_INTERRUPTED) from interruption
    if failures:
        raise typer.Exit(1)


@app.command()
def serve(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL_DIR", help="Folder of a trained model; for arms that name none.")
    ] = None,
    experiment: Annotated[Path | None, typer.Option(help="Arms and their weights: a .toml or .json file.")] = None,
    log: Annotated[str, typer.Option(help="A SQLite file, or postgresql://user@host/database.")] = "seq2slate-log.db",
    durability: Annotated[
        DurabilityName, typer.Option(help="What is acknowledged survives the end of the process, or of the power too.")
    ] = DurabilityName.process,
    log_failure: Annotated[
        LogFailure, typer.Option(help="When the log fails, answer the base order without a slate_id, or 503.")
    ] = LogFailure.serve,
    host: Annotated[str, typer.Option(help="Address to bind; any but this machine's own needs --keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind; 0 takes a free one.")] = 8080,
    keys: Annotated[Path | None, typer.Option(help="File of API keys, which are then required.")] = None,
    deadline_ms: Annotated[
        float, typer.Option(min=0.001, help="The base order is answered if the model takes longer.")
    ] = 100,
    log_deadline_ms: Annotated[float, typer.Option(min=1, help="A commit that takes longer has failed.")] = 1000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="For the model; as many as cores, up to 4, if not given.")
    ] = None,
    max_items: Annotated[int, typer.Option(min=1, help="Items of a list.")] = 1000,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Size of a request.")] = 4 << 20,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Requests at a time; more get 429.")] = 256,
) -> None:
    """Serve a model over HTTP, or an experiment with several, and log what is shown and clicked."""
    try:
        from seq2slate.serving.reranker import Patience
        from seq2slate.serving.server import Settings
        from seq2slate.serving.server import serve as run
        from seq2slate.serving.service import Limits
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed: pip install 'seq2slate[serve]'") from missing

    patience = Patience(deadline_ms / 1e3, log_deadline_ms / 1e3, log_failure.value)
    limits = Limits(body_bytes=max_body_bytes, items=max_items, in_flight=max_in_flight)
    settings = Settings(model, experiment, log, durability.value, host, port, keys, threads, patience, limits)
    run(settings, lambda address: typer.echo(f"serving on {address}"))


@keys_app.command("add")
def add_key(
    file: KeysFile,
    scope: Annotated[ScopeName, typer.Option(help="For slates and clicks, or for everything else.")] = ScopeName.serve,
    note: Annotated[str, typer.Option(help="For people: whose key it is.")] = "",
) -> None:
    """Make a key and print it, once: the file has only its hash."""
    from seq2slate.serving import keys

    typer.echo(keys.add_key(file, scope.value, note))


@keys_app.command("list")
def list_keys(file: KeysFile) -> None:
    """Print the id, the scope, the time and the note of every key."""
    from seq2slate.serving import keys

    for key in keys.read_keys(file):
        created = datetime.fromtimestamp(key.created, UTC).isoformat(timespec="seconds")
        typer.echo(f"{key.id}  {key.scope:5}  {created}  {key.note}")


@keys_app.command("revoke")
def revoke_key(file: KeysFile, key: Annotated[str, typer.Argument(metavar="ID", help="As `list` prints it.")]) -> None:
    """Take a key away; the next request with it is refused."""
    from seq2slate.serving import keys

    keys.revoke_key(file, key)
    typer.echo(f"{file}: {key} is revoked")


@app.command()
def experiment(
    log: LogUrl,
    name: Annotated[
        str | None, typer.Option("--experiment", help="Its name; that of the latest slate if not given.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="ARM", help="What the others are compared with; control or base if not given.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="ARM=WEIGHT,…", help="How the units were shared out; equally if not given.")
    ] = None,
    expected_lift: Annotated[
        float, typer.Option(help="The relative effect that one hopes to find, chosen beforehand.")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Compare the arms of a live experiment: click-through rates, and differences that may be looked at any time."""
    from seq2slate.serving.analysis import analyse, parse_weights
    from seq2slate.serving.analysis_tables import analysis_tables
    from seq2slate.serving.log.store import open_store

    shares = None if weights is None else parse_weights(weights)
    with open_store(log, create=False) as store:
        if name is None:
            latest = store.recent(1)
            if not latest:
                raise UsageError(f"{store.name}: there are no slates to tell the experiment from: give --experiment")
            name = latest[0].impression.experiment
        counts = store.counts(name)
    result = analyse(counts, control=control, weights=shares, expected_lift=expected_lift)
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(analysis_tables(result))


@log_app.command("export")
def export_log(
    log: LogUrl,
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Leave out what was shown before.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Leave out what was shown then or later.")] = None,
    arm: Annotated[str | None, typer.Option(help="Only this arm of the experiments.")] = None,
) -> None:
    """Write the slates of a log as lists to train on, with the clicks as labels.

    A TIME is like 2026-01-31T12:00, in UTC unless it says otherwise, or in seconds since 1970.
    """
    from seq2slate.serving.log.export import export as write_log
    from seq2slate.serving.log.export import parse_time
    from seq2slate.serving.log.reading import Range
    from seq2slate.serving.log.store import open_store

    if out.suffix != ".parquet":
        raise UsageError(f"{out}: a log is exported to a .parquet file")
    first, last = (None if text is None else parse_time(text) for text in (since, until))
    with open_store(log, create=False) as store:
        total = write_log(store, out, Range(first, last, arm))
    typer.echo(f"{out}: {total:,} lists")


@log_app.command("prune")
def prune_log(
    log: LogUrl,
    before: Annotated[str, typer.Option(metavar="TIME", help="Delete what was shown before: 2026-01-31, or seconds.")],
) -> None:
    """Delete old slates and their clicks from a log; the counts of the experiments stay as they are."""
    from seq2slate.serving.log.export import parse_time
    from seq2slate.serving.log.store import open_store

    with open_store(log, create=False) as store:
        total = store.prune(parse_time(before))
    typer.echo(f"{store.name}: {total:,} slates deleted")


@app.command()
def traffic(
    url: Annotated[str, typer.Argument(help="The address of the service, as `serve` prints it.")],
    data: Annotated[str, typer.Argument(help="Lists with grades, in base order.")],
    user: Annotated[UserName, typer.Option(help="Who looks at the slates.")] = UserName.diverse,
    eta: Eta = None,
    q: Quantile = None,
    relevant_from: RelevantFrom = None,
    requests: Annotated[int, typer.Option(min=1, help="Slates to ask for, in all.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Visitors at a time.")] = 8,
    k: Annotated[int, typer.Option(min=1, help="Slots of a slate.")] = 10,
    units: Annotated[
        int | None, typer.Option(min=1, help="Different visitors; a quarter of the requests if not given.")
    ] = None,
    seed: Seed = 0,
    key: Annotated[str | None, typer.Option(envvar="SEQ2SLATE_KEY", help="API key, if the service needs one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send simulated visitors to a running service: they ask for slates, click, and count what they saw."""
    from seq2slate.serving.traffic import send_traffic

    visitor = make_user(user.value, eta=eta, q=q, relevant_from=relevant_from)
    result = send_traffic(
        url, read(data), visitor, requests=requests, concurrency=concurrency, k=k, units=units, seed=seed, key=key
    )
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(result.table())


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
    """Run a command; what a user can mend is said in one line, with exit code 2."""
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
        sys.exit(_INTERRUPTED)


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
