"""Options are the fields of dataclasses: what they are called, what they may be, and what they mean is said there once.

The help text of an option is the docstring under its field. Its choices are those of a `Literal` type, or the names of
a registry: the dict in which every component of a family (loss, encoder, click model, …) stands under its name. A field
names its registry with `named_in("package.module:REGISTRY", default)`. The names are read from the source of the module
unless it is loaded already, so that a help text does not have to load PyTorch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from seq2slate.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One field of a dataclass, as a user meets it."""

    name: str
    type: Any
    """The type of a value, without None and without Literal."""
    default: Any
    help: str
    """The docstring under the field, on one line."""
    choices: Callable[[], tuple[str, ...]] | None
    """Returns the names to choose from; None where any value of the type will do."""
    is_optional: bool = False
    """Whether the value may be None."""


def named_in(registry: str, default: str) -> Any:
    """Return a dataclass field that holds a name of a registry, given as `package.module:REGISTRY`."""
    return field(default=default, metadata={"registry": registry})


def registry_names(registry: str) -> tuple[str, ...]:
    """Return the names in a registry, which is a dict at the top level of its module.

    >>> registry_names("seq2slate.metrics:METRICS")[:2]
    ('MAP', 'MRR')
    """
    module, name = registry.split(":")
    if module in sys.modules:
        return tuple(getattr(sys.modules[module], name))
    for node in _syntax_tree(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            dicts = (part for part in ast.walk(node) if isinstance(part, ast.Dict))
            return tuple(str(key.value) for key in next(dicts).keys if isinstance(key, ast.Constant))
    raise LookupError(f"{module} has no dict {name}")


def component(registry: str, name: str) -> Any:
    """Return what stands under a name in a registry; its module is imported."""
    module, variable = registry.split(":")
    return getattr(import_module(module), variable)[name]


def options_of(*classes: type) -> list[Option]:
    """Return the options of dataclasses, in their order: every field that the constructor takes.

    >>> @dataclass
    ... class Tea:
    ...     milk: bool = False
    >>> [(option.name, option.type, option.default) for option in options_of(Tea)]
    [('milk', <class 'bool'>, False)]
    """
    return [option for cls in classes for option in _options(cls)]


def check_choices(config: object) -> None:
    """Raise a UsageError that lists the choices if a field of a dataclass holds a name that is none of them."""
    for option in options_of(type(config)):
        value = getattr(config, option.name)
        if option.choices is not None and value is not None and value not in option.choices():
            raise UsageError(f"there is no {option.name} {value!r}; choose one of {', '.join(option.choices())}")


def convert_options(values: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Return options in the types of their fields, so that 8.0 and numpy.int64(8) are 8 where an int is meant.

    Raises:
        UsageError: A value cannot be of the type of its field; names that no field has are left as they are.

    >>> @dataclass
    ... class Tea:
    ...     cups: int = 1
    >>> convert_options({"cups": 2.0}, Tea)
    {'cups': 2}
    >>> convert_options({"cups": "two"}, Tea)
    Traceback (most recent call last):
    seq2slate.errors.UsageError: cups must be a whole number, got 'two'
    """
    known = {option.name: option for option in options_of(*classes)}
    return {name: _converted(known[name], value) if name in known else value for name, value in values.items()}


_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def _converted(option: Option, value: Any) -> Any:
    kind = option.type
    if kind not in _KINDS or (value is None and option.is_optional):
        return value
    is_bool = isinstance(value, bool | np.bool_)
    is_number = isinstance(value, Real) and not is_bool
    fits = {bool: is_bool, int: is_number and float(value).is_integer(), float: is_number, str: isinstance(value, str)}
    if not fits[kind]:
        raise UsageError(f"{option.name} must be {_KINDS[kind]}, got {value!r}")
    return kind(value)


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of its bases, on one line."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(owner):
            docs |= _docs_in_source(owner)
    return docs


@cache
def _syntax_tree(module: str) -> ast.Module:
    """Parse the source of a module, loaded or not; what was typed into a console has none."""
    loaded = sys.modules.get(module)
    path = getattr(loaded, "__file__", None) if loaded else getattr(find_spec(module), "origin", None)
    return ast.parse(Path(path).read_text(encoding="utf-8") if path else "")


def _docs_in_source(cls: type) -> dict[str, str]:
    node: Any = _syntax_tree(cls.__module__)
    for name in cls.__qualname__.replace(".<locals>", "").split("."):
        scopes = (one for one in ast.walk(node) if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name)
        node = next(scopes, ast.Module([], []))
    return {
        above.target.id: " ".join(below.value.value.split())
        for above, below in pairwise(node.body)
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }  # fmt: skip


@cache
def _options(cls: type) -> tuple[Option, ...]:
    hints, docs = get_type_hints(cls), field_docs(cls)
    return tuple(_option(one, hints[one.name], docs.get(one.name, "")) for one in fields(cls) if one.init)


def _option(one: Field[Any], hint: Any, doc: str) -> Option:
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kind = next(kind for kind in alternatives if kind is not type(None))
    choices: Callable[[], tuple[str, ...]] | None = None
    if get_origin(kind) is Literal:
        kind, choices = str, partial(tuple, get_args(kind))
    elif "registry" in one.metadata:
        choices = partial(registry_names, one.metadata["registry"])
    default = one.default_factory() if callable(one.default_factory) else one.default
    return Option(one.name, kind, default, doc, choices, is_optional=type(None) in alternatives)
