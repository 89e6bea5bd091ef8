"""Options that several commands share, and options that are derived from the fields of dataclasses."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

import typer

from seq2slate.data.roles import Columns
from seq2slate.options import Option, options_of
from seq2slate.reproduce.plan import TARGETS
from seq2slate.simulation.click_models import CLICK_MODELS
from seq2slate.simulation.synthetic import WORLDS

Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_FLAGS = {"features": "--feature"}
"""Options whose name on the command line is not that of their field."""
INTERRUPTED = 130
"""The exit code that shells know for Ctrl-C."""

_EXAMPLES = "with options of its own: diverse:q=0.1,distance=cosine; a mixture: '2 diverse + intent'"
USERS = f"{', '.join(CLICK_MODELS)}; {_EXAMPLES}."
"""What `--user` takes."""
CLICK_MODEL_OPTIONS = {name: options_of(kind) for name, kind in CLICK_MODELS.items()}

if TYPE_CHECKING:
    Target: TypeAlias = str
    WorldName: TypeAlias = str
else:
    Target = Literal[TARGETS]
    """What `reproduce` takes."""
    WorldName = Literal[tuple(WORLDS)]
    """What `--world` takes."""

Command = TypeVar("Command", bound=Callable[..., None])


def derived_from(owners: Mapping[str, Sequence[Option]]) -> Callable[[Command], Command]:
    """Give a command, which takes them as `**options`, the options of dataclasses; one that is not given is left out.

    Args:
        owners: The options of each owner by its name. Owners may share an option: each help text names those
            that it is of, unless it is of all. The owner "" is the command's main subject, which is not named.

    """
    merged: dict[str, tuple[Option, dict[str, list[str]]]] = {}
    for owner, options in owners.items():
        for option in options:
            merged.setdefault(option.name, (option, {}))[1].setdefault(option.help, []).append(owner)

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {one.name for one in named}
        derived = [
            _parameter(option, texts, len(owners)) for name, (option, texts) in merged.items() if name not in taken
        ]

        @wraps(command)
        def called(**values: Any) -> None:
            names = {one.name for one in derived}
            given = {name: value for name, value in values.items() if name in names and value not in (None, [])}
            command(**{name: value for name, value in values.items() if name not in names}, **given)

        del called.__wrapped__
        called.__signature__ = own.replace(parameters=[*named, *derived])  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in (*named, *derived)}
        return cast(Command, called)

    return decorate


def with_columns(command: Command) -> Command:
    """Give a command, which takes those that are given as `columns`, an option for each role of `Columns`."""
    own = inspect.signature(command, eval_str=True)
    named = [one for one in own.parameters.values() if one.name != "columns"]
    roles = [_parameter(option, {option.help: [""]}, 1) for option in options_of(Columns)]

    @wraps(command)
    def called(**values: Any) -> None:
        given = {one.name: values.pop(one.name) for one in roles}
        command(**values, columns={role: value for role, value in given.items() if value not in (None, [])})

    del called.__wrapped__
    called.__signature__ = own.replace(parameters=[*named, *roles])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*named, *roles)}
    return cast(Command, called)


def _parameter(option: Option, owners_of_text: Mapping[str, Sequence[str]], n_owners: int) -> inspect.Parameter:
    """Return an option as a keyword argument that Typer understands; each help text names its owners, if any."""
    kind: Any = option.type
    if option.choices is not None:
        kind = Literal.__getitem__(option.choices())
    elif get_origin(kind) is collections.abc.Sequence:
        item = get_args(kind)[0]
        kind = list[str if get_origin(item) is Literal else item]  # type: ignore[misc]
    text = " ".join(_help(text, owners, n_owners) for text, owners in owners_of_text.items())
    flag = _FLAGS.get(option.name, "--" + option.name.replace("_", "-"))
    declared = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    annotation = Annotated[kind | None, typer.Option(declared, help=text, show_default=False)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(text: str, owners: Sequence[str], n_owners: int) -> str:
    others = ", ".join(owner for owner in owners if owner)
    if not others or len(owners) == n_owners:
        return text
    return f"{text} Also for {others}." if "" in owners else f"{others}: {text}"
