"""The commands from lists to slates: data, simulated users, training, evaluation, reproduction."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console

from seq2slate.atomic import atomic_path
from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.neural import NeuralRanker
from seq2slate.baselines.parsing import parse_rankers
from seq2slate.cli.options import (
    CLICK_MODEL_OPTIONS,
    INTERRUPTED,
    USERS,
    AsJson,
    Seed,
    Target,
    WorldName,
    derived_from,
    with_columns,
)
from seq2slate.config import PRESETS, NetworkConfig, TrainingConfig
from seq2slate.data.checks import find_problems
from seq2slate.data.files import is_split_folder, read, read_split, write, write_split
from seq2slate.data.layouts import Layout
from seq2slate.data.lists import ItemLists, Split
from seq2slate.data.ranker import Ranker, reorder_lists
from seq2slate.data.roles import Columns, as_columns, join_columns
from seq2slate.data.summary import summarise
from seq2slate.errors import Seq2SlateError, TrainingInterruptedError, UsageError
from seq2slate.estimator import ESTIMATORS, NETWORK_PRESETS, Estimator, Slate, estimator_class, load, make_estimator
from seq2slate.evaluation.evaluate import evaluate as evaluate_rankers
from seq2slate.metrics import DEFAULT_MEASURES, Measure, NoPositives
from seq2slate.options import options_of
from seq2slate.saving import check_replaceable
from seq2slate.simulation.battery import BATTERY
from seq2slate.simulation.click_models import check_grades, click_model, simulate_clicks
from seq2slate.simulation.synthetic import WORLDS, make_synthetic_lists

app = typer.Typer(rich_markup_mode=None)


@app.command()
def synth(
    out: Annotated[Path, typer.Argument(help="File to write; its suffix says the format (.parquet, .jsonl, .txt).")],
    lists: Annotated[int, typer.Option(min=1, help="Number of lists.")] = 1000,
    items: Annotated[float, typer.Option(min=1, help="Mean number of items of a list.")] = 110,
    world: Annotated[WorldName, typer.Option(help="What lists are like: a sample of WEB30K, or topics.")] = "web30k",
    features: Annotated[
        int | None, typer.Option(min=4, help="Number of feature columns, for world topics; 136 unless given.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Generate lists shaped like the WEB30K data set, with the true probability of relevance beside them."""
    write(make_synthetic_lists(lists, items=items, world=world, features=features, seed=seed), out)
    typer.echo(f"{out}: {lists:,} lists")


@app.command()
@with_columns
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, a glob, or a folder of files.")],
    out: Annotated[Path, typer.Argument(help="File to write, or folder if IN is a folder with train, valid and test.")],
    layout: Annotated[Layout | None, typer.Option(help="What a row of a Parquet file is; lists if not given.")] = None,
    *,
    columns: Mapping[str, Any],
) -> None:
    """Convert between LETOR text, Parquet, JSON lines and CSV."""
    if is_split_folder(source):
        write_split(read_split(source, columns), out, layout=layout)
        typer.echo(f"{out}: train, valid and test")
        return
    lists = read(source, columns)
    write(lists, out, layout=layout)
    typer.echo(f"{out}: {len(lists):,} lists, {lists.n_items:,} items")


@app.command()
@with_columns
def inspect(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, a glob, or a folder of files.")],
    as_json: AsJson = False,
    *,
    columns: Mapping[str, Any],
) -> None:
    """Print what a file holds: what each column is taken for, lists, lengths, labels, and what to worry about."""
    parts = read_split(source, columns)._asdict() if is_split_folder(source) else {source: read(source, columns)}
    if as_json:
        values = {name: summarise(lists).as_dict() | _roles_as_dict(lists) for name, lists in parts.items()}
        typer.echo(json.dumps(values if len(values) > 1 else values[source], indent=2))
        return
    for name, lists in parts.items():
        roles = "" if lists.roles is None else f"{lists.roles}\n\n"
        problems = "".join(f"\nwarning: {problem}" for problem in find_problems(lists))
        typer.echo(f"{name}\n{roles}{summarise(lists)}{problems}")


def _roles_as_dict(lists: ItemLists) -> dict[str, Any]:
    found: dict[str, Any] = {"problems": find_problems(lists)}
    if lists.roles is not None:
        found |= {"columns": [use._asdict() for use in lists.roles.uses], "base_order": lists.roles.base_order}
    return found


@app.command()
@with_columns
def split(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, a glob, or a folder of files.")],
    out: Annotated[Path, typer.Argument(help="Folder for train.parquet, valid.parquet and test.parquet.")],
    valid: Annotated[float, typer.Option(min=0, max=1, help="Share of the lists for validation.")] = 0.1,
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of the lists for testing.")] = 0.2,
    in_order: Annotated[
        bool,
        typer.Option("--in-order", help="Train on the first lists and test on the last ones, as in a log by time."),
    ] = False,
    seed: Seed = 0,
    *,
    columns: Mapping[str, Any],
) -> None:
    """Split lists into train, validation and test; `train` and `evaluate` take the folder."""
    lists, shares = read(source, columns), (1 - valid - test, valid)
    if shares[0] <= 0:
        raise UsageError(f"validation and test take {valid + test:.0%} of the lists: leave some to train on")
    parts = Split(*lists.split(*shares, seed=seed, in_order=in_order))
    write_split(parts, out)
    typer.echo(f"{out}: {', '.join(f'{name} {len(part):,}' for name, part in parts._asdict().items())} lists")


@app.command()
@with_columns
@derived_from(CLICK_MODEL_OPTIONS)
def simulate(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Lists with grades, in base order unless --ranker is given.")
    ],
    out: Annotated[Path, typer.Argument(help="File to write, with clicks as labels and the grades kept beside them.")],
    user: Annotated[str, typer.Option(help=f"Who looks at the lists: {USERS}")] = "diverse",
    seed: Seed = 0,
    ranker: Annotated[Path | None, typer.Option(help="Folder of the ranker whose order the user sees.")] = None,
    *,
    columns: Mapping[str, Any],
    **options: Any,
) -> None:
    """Let a simulated user click on lists."""
    lists = read(source, columns)
    if ranker is not None:
        lists = reorder_lists(load(ranker), lists)
    visitor = click_model(user, **options)
    check_grades(visitor, lists)
    clicked = simulate_clicks(visitor, lists, seed=seed)
    write(clicked, out)
    clicks = 0 if clicked.labels is None else int(clicked.labels.sum())
    typer.echo(f"{out}: {len(clicked):,} lists, {clicks:,} clicks")


@app.command()
@with_columns
@derived_from(CLICK_MODEL_OPTIONS)
def evaluate(
    data: Annotated[str, typer.Argument(help="Labelled lists, in base order; the test part of a folder with a split.")],
    ranker: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER, or base, random, ceiling-logged, ceiling-shown; may be given several times."),
    ] = None,
    user: Annotated[str | None, typer.Option(help=f"Show this simulated user the new slates, too: {USERS}")] = None,
    measure: Annotated[list[str] | None, typer.Option(help="Such as NDCG@10; may be given several times.")] = None,
    no_positives: Annotated[NoPositives, typer.Option(help="Lists without positives.")] = "skip",
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    columns: Mapping[str, Any],
    **options: Any,
) -> None:
    """Compare rankers with the base order: metrics, 95% intervals and a paired test."""
    visitor = None if user is None else click_model(user, **options)
    rankers = parse_rankers(ranker or ["base"], user=visitor, seed=seed)
    roles = _with_roles_of(rankers.values(), columns)
    lists = read_split(data, roles).test if is_split_folder(data) else read(data, roles)
    if visitor is not None:
        check_grades(visitor, lists)
    ceilings = [name for name, one in rankers.items() if isinstance(one, LoggedCeiling | ShownCeiling)]
    measures = DEFAULT_MEASURES if measure is None else tuple(Measure.parse(text) for text in measure)
    result = evaluate_rankers(
        rankers,
        lists,
        measures=measures,
        user=visitor,
        ceiling=ceilings,
        seed=seed,
        no_positives=no_positives,
    )
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(result)


def _with_roles_of(rankers: Iterable[Ranker], columns: Mapping[str, Any]) -> Columns:
    """Return the roles that are given, on top of those that the rankers were trained with."""
    trained = [as_columns(one.columns_, columns) for one in rankers if isinstance(one, Estimator)]
    return join_columns(trained) if trained else as_columns(columns)


@app.command()
@with_columns
@derived_from(
    {"": options_of(NetworkConfig, TrainingConfig)}
    | {kind: options_of(estimator_class(kind)) for kind in ESTIMATORS if kind != "seq2slate"}
)
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN", help="Labelled lists, in base order, or a folder with train, valid and test parts."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the trained model.")],
    valid: Annotated[
        str | None,
        typer.Option(
            help="Validation lists, which choose the epoch; the valid part of a folder, or a tenth of TRAIN, if not "
            "given."
        ),
    ] = None,
    ranker: Annotated[
        str,
        typer.Option(
            help=f"What to train: {', '.join([*ESTIMATORS, *NETWORK_PRESETS])}; the last "
            f"{len(NETWORK_PRESETS)} are presets of seq2slate."
        ),
    ] = "seq2slate",
    preset: Annotated[
        str | None,
        typer.Option(help=f"Where the options of seq2slate start from: {', '.join(PRESETS)}; default if not given."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads of PyTorch and the C kernels; OMP_NUM_THREADS, or all cores up to 4, if not given."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with this run: begin it, continue it, or keep its model if it has ended."),
    ] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard scalars.")] = None,
    *,
    columns: Mapping[str, Any],
    **options: Any,
) -> None:
    """Train a ranker on labelled lists; Ctrl-C stops, and --resume goes on."""
    check_replaceable(out)
    if preset is not None:
        if ranker != "seq2slate":
            raise UsageError(f"--preset is for seq2slate: leave it out with --ranker {ranker}")
        options["preset"] = preset
    estimator = make_estimator(ranker, **options)
    if estimator.kind != "seq2slate" and (resume or tensorboard is not None):
        raise UsageError(f"--resume and --tensorboard are for seq2slate: leave them out with --ranker {ranker}")
    if estimator.kind == "seq2slate" or isinstance(estimator, NeuralRanker):
        _set_threads(threads)
    elif threads is not None:
        raise UsageError(f"--threads is for networks: leave it out with --ranker {ranker}")
    lists, chosen = _train_and_valid(data, valid, columns)
    if estimator.kind == "seq2slate":
        _train_reranker(estimator, lists, chosen, out, resume=resume, tensorboard=tensorboard)
        return
    estimator.fit(lists, chosen).save(out)
    typer.echo(f"{out}: {ranker}, trained on {len(lists):,} lists")


def _train_and_valid(data: str, valid: str | None, columns: Mapping[str, Any]) -> tuple[ItemLists, ItemLists | None]:
    if not is_split_folder(data):
        return read(data, columns), None if valid is None else read(valid, columns)
    split = read_split(data, columns)
    return split.train, split.valid if valid is None else read(valid, columns)


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or min(4, os.cpu_count() or 1))


def _train_reranker(
    estimator: Estimator,
    lists: ItemLists,
    valid: ItemLists | None,
    out: Path,
    *,
    resume: bool,
    tensorboard: Path | None,
) -> None:
    from seq2slate.reranker import Reranker
    from seq2slate.training.callbacks import TensorBoardCallback

    assert isinstance(estimator, Reranker), "an estimator of the kind seq2slate is a Reranker"
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    if resume and _run_id(out) == estimator.run_id(lists, valid):
        shutil.rmtree(checkpoints, ignore_errors=True)
        typer.echo(f"{out}: the model of this run, which has ended; there is nothing to resume")
        return
    callbacks = [] if tensorboard is None else [TensorBoardCallback(tensorboard)]
    try:
        estimator.fit(lists, valid, checkpoints=checkpoints, resume=resume, callbacks=callbacks)
    except TrainingInterruptedError as interruption:
        typer.echo(interruption, err=True)
        raise typer.Exit(INTERRUPTED) from interruption
    estimator.save(out)
    shutil.rmtree(checkpoints, ignore_errors=True)
    typer.echo(f"{out}: {estimator.name}, trained on {len(lists):,} lists")


def _run_id(folder: Path) -> str | None:
    """Return the identity of the run that a saved network comes from; None if there is no network to be opened."""
    from seq2slate.reranker import Reranker

    try:
        found = load(folder)
    except Seq2SlateError:
        return None
    return found.history_.run_id if isinstance(found, Reranker) else None


@app.command()
@with_columns
def rerank(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model, or of any ranker.")],
    source: Annotated[str, typer.Argument(metavar="IN", help="Lists in base order.")],
    out: Annotated[Path, typer.Argument(help="File for the slates: .parquet or .jsonl.")],
    k: Annotated[int | None, typer.Option(min=1, help="Slots of a slate; all items if not given.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw slates from the model instead of the best.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample: above 1 is closer to uniform.")] = 1.0,
    seed: Seed = 0,
    *,
    columns: Mapping[str, Any],
) -> None:
    """Put lists in a better order: ids out, best first, with the log-probability of each choice."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise UsageError(f"{out}: slates are written as .parquet or .jsonl")
    estimator = load(model)
    lists = read(source, _with_roles_of([estimator], columns), labelled=False)
    if not sample:
        slates = estimator.rerank(lists, k)
    elif estimator.kind == "seq2slate":
        slates = estimator.rerank(lists, k, sample_seed=seed, temperature=temperature)  # type: ignore[call-arg]
    else:
        raise UsageError("only a network has probabilities to draw slates from: leave out --sample")
    _write_slates(slates, lists, out)
    typer.echo(f"{out}: {len(slates):,} slates")


def _write_slates(slates: Sequence[Slate], lists: ItemLists, out: Path) -> None:
    """Write a row a list: `list_id`, `item_id` (best first) and, from a network, `log_probability` of each choice.

    Ids have the types that they were read in.
    """
    list_type, item_type = lists.original_list_ids().type, lists.original_item_ids().type
    columns = {
        "list_id": pa.array([str(slate.list_id) for slate in slates], pa.string()).cast(list_type),
        "item_id": pa.array([[str(item) for item in slate.item_ids] for slate in slates], pa.list_(pa.string())).cast(
            pa.list_(item_type)
        ),
    }
    if all(slate.log_probabilities is not None for slate in slates):
        columns["log_probability"] = pa.array([slate.log_probabilities for slate in slates], pa.list_(pa.float32()))
    table = pa.table(columns)
    with atomic_path(out) as partial:
        if out.suffix == ".parquet":
            pq.write_table(table, partial)
        else:
            partial.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a trained model.")],
    out: Annotated[Path | None, typer.Option(help="File to write; MODEL_DIR/model.onnx if not given.")] = None,
) -> None:
    """Write a model as one ONNX file, after comparing its slates with the network's on random lists."""
    try:
        from seq2slate.model.backends.onnx_export import export_onnx
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed: pip install 'seq2slate[serve]'") from missing

    target = out or model / "model.onnx"
    parity = export_onnx(model, target)
    typer.echo(f"{target}: {parity}")


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, as `reproduce` writes it.")],
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown instead, to paste into a document.")
    ] = False,
) -> None:
    """Write report.html, one file with tables and pictures of a run, and the pictures beside it."""
    from seq2slate.evaluation.report import markdown, write_report

    typer.echo(markdown(run_dir) if as_markdown else write_report(run_dir))


@app.command()
@with_columns
def reproduce(
    target: Annotated[
        Target,
        typer.Argument(
            help="A table or figure of the paper, its running times, or all; a battery of users; real logs."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was interrupted goes on where it was.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Graded lists: a file, a glob, or a folder with train, valid and test; generated if not given. For "
            "logs: a click log, or the folder of several."
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(help="For logs: a TOML file of the logs in --data, with file, time, first and roles of each."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="For logs: the column that sorts the lists; as they are if not given.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer lists, fewer epochs, and one seed.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All rows with all lists and three seeds: many hours.")] = False,
    world: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The world of generated lists: {', '.join(WORLDS)}; web30k if not given, and all for the battery."
        ),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(help=f"For the battery: {', '.join(BATTERY)}; all if not given.")
    ] = None,
    lists: Annotated[int | None, typer.Option(min=1, help="Generated training lists.")] = None,
    tests: Annotated[int | None, typer.Option(min=1, help="Generated test lists.")] = None,
    items: Annotated[float | None, typer.Option(min=1, help="Mean number of items of a generated list.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How often everything random is trained.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; as many as cores if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells with their sizes, and do none.")] = False,
    *,
    columns: Mapping[str, Any],
) -> None:
    """Make the paper's tables and figures, a battery of users, or tables of real logs, with intervals and a report."""
    from seq2slate.reproduce.folder import plan_text
    from seq2slate.reproduce.sizes import sizes_of

    if target != "logs" and (logs is not None or time is not None):
        raise UsageError("--logs and --time are for logs")
    if target != "battery" and (user or len(world or ()) > 1):
        raise UsageError("--user and several --world are for the battery")
    settings = sizes_of(target, quick=quick, full=full, lists=lists, tests=tests, items=items, seeds=seeds)
    if target == "battery":
        from seq2slate.reproduce.battery import planned_battery, run_battery

        plan = partial(planned_battery, settings, world or (), user or ())
        run = partial(run_battery, out, settings, worlds=world or (), users=user or ())
    elif target == "logs":
        from seq2slate.reproduce.logs import click_logs, planned_logs, run_logs

        found = click_logs(data, logs, time, columns)
        plan, run = partial(planned_logs, settings, found), partial(run_logs, out, settings, found)
    else:
        from seq2slate.reproduce.run import planned_cells
        from seq2slate.reproduce.run import reproduce as run_paper

        settings = replace(settings, world=world[0]) if world else settings
        plan = partial(planned_cells, target, settings, data, columns)
        run = partial(run_paper, target, out, settings, data=data, columns=columns)
    if dry_run:
        typer.echo(plan_text(plan(), out))
        return
    try:
        failures = run(jobs=jobs or os.cpu_count() or 1, console=Console())
    except KeyboardInterrupt as interruption:
        typer.echo(f"interrupted; what is done is kept in {out}, and the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from interruption
    if failures:
        raise typer.Exit(1)
