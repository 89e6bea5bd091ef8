"""Column roles: which column of a table is the list, the item and the label, and what a model may read.

`Columns` is what a user declares. `ColumnRoles` is what came of it for one table: every column with the role that it
was given and a note, so that nothing is used or left out in silence.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from seq2slate.errors import DataError, UsageError
from seq2slate.html import element, table

if TYPE_CHECKING:
    from seq2slate.data.lists import ItemLists

_SEVERAL = ("features", "categorical", "context", "ignore", "time_parts")
_MAY_SHARE = {
    frozenset(pair)
    for pair in (
        ("item_id", "categorical"),
        ("list_id", "categorical"),
        ("list_id", "context"),
        ("categorical", "context"),
        ("categorical", "features"),
        ("order_by", "features"),
        ("order_by", "time_parts"),
        ("context", "time_parts"),
    )
}
"""Roles that one column may have together; any other two contradict each other."""
_LABEL_WORDS = ("click", "label", "relevan", "grade", "rating", "target", "purchase", "conver", "judg", "book", "order")


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a table. A role that takes several columns also takes the name of one.

    Other columns are features (numbers) or categorical (text), unless `features` says which ones to read.

    >>> columns = Columns(list_id="search_term", label="clicked", order_by="-tfidf", categorical="brand")
    >>> columns.categorical
    ('brand',)
    >>> Columns.from_dict(columns.to_dict()) == columns
    True
    >>> Columns(label="clicked", ignore="clicked")
    Traceback (most recent call last):
    seq2slate.errors.UsageError: column 'clicked' is declared both label and ignore; choose one
    """

    list_id: Sequence[str] | str = "list_id"
    """Column with the id of the list: a query, session or page. Several columns are joined."""
    item_id: str = "item_id"
    """Column with the id of the item."""
    label: str | None = None
    """Column with clicks or grades; the column `label` if not given."""
    position: str | None = None
    """Column with the base position, from 0 or 1, gaps allowed; the column `position` if not given."""
    order_by: str | None = None
    """Column that sorts each list into base order, ascending; `-NAME` is descending. Missing values come last."""
    features: Sequence[str] | None = None
    """Columns that a model reads; all that no other role claims if not given."""
    categorical: Sequence[str] = ()
    """Columns whose values are categories, even if they are numbers."""
    context: Sequence[str] = ()
    """Columns with one value per list."""
    ignore: Sequence[str] = ()
    """Columns to leave out."""
    time_parts: Sequence[str] = ()
    """Timestamps that become features: NAME.hour, NAME.weekday (0 is Monday) and NAME.days (since 1970)."""

    def __post_init__(self) -> None:
        for name in _SEVERAL:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _as_names(name, value))
        ids = _as_names("list_id", self.list_id)
        if not ids:
            raise UsageError("list_id needs at least one column")
        object.__setattr__(self, "list_id", ids[0] if len(ids) == 1 else ids)
        for name in ("item_id", "label", "position", "order_by"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name != "item_id")):
                raise UsageError(f"{name} must be the name of a column, got {value!r}")
        if self.position is not None and self.order_by is not None:
            raise UsageError("position and order_by both set the base order; give one of them")
        self._check_shared()

    def _check_shared(self) -> None:
        roles_of: dict[str, list[str]] = {}
        for role, names in self._named().items():
            for name in names:
                roles_of.setdefault(name, []).append(role)
        for name, roles in roles_of.items():
            for one, other in combinations(roles, 2):
                if one == other:
                    raise UsageError(f"column {name!r} is named twice in {one}")
                if frozenset((one, other)) not in _MAY_SHARE:
                    raise UsageError(f"column {name!r} is declared both {one} and {other}; choose one")

    @property
    def list_id_columns(self) -> tuple[str, ...]:
        """The column or columns that tell lists apart."""
        return (self.list_id,) if isinstance(self.list_id, str) else tuple(self.list_id)

    def _named(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that each role names."""
        named: dict[str, tuple[str, ...]] = {"list_id": self.list_id_columns}
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            named[one.name] = () if value is None else (value,) if isinstance(value, str) else value
        if self.order_by is not None:
            named["order_by"] = (self.order_by.removeprefix("-"),)
        return named

    def missing_from(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return (role, column) for each column that is named here and is not among `names`."""
        missing = [(role, name) for role, wanted in self._named().items() for name in wanted if name not in names]
        return [(role, name) for role, name in missing if not (role == "order_by" and self.order_by in names)]

    def declares(self, name: str) -> bool:
        """Say whether a column is named in any role, `ignore` included."""
        return any(name in names for names in self._named().values())

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Return the roles that `to_dict` or a file wrote; `source` is its name in error messages."""
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                place = f"{source}: " if source else ""
                raise UsageError(
                    f"{place}there is no role {name!r}{suggest(name, known)}; roles are {', '.join(known)}"
                )
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{source}: {error}" if source else str(error)) from error

    def changes(self) -> dict[str, Any]:
        """Return the roles that differ from the defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


def as_columns(columns: Columns | Mapping[str, Any] | None, roles: Mapping[str, Any] | None = None) -> Columns:
    """Return roles that are given as `Columns`, as a mapping, as single roles, or not at all.

    Single roles win, and what contradicts them gives way: a position replaces `order_by`, and a column leaves the roles
    that it cannot have together with the given one.

    >>> as_columns(Columns(label="clicks"), {"ignore": "id"}).changes()
    {'label': 'clicks', 'ignore': ('id',)}
    >>> as_columns(Columns(order_by="-score", features=["price", "rank"]), {"position": "rank"}).changes()
    {'position': 'rank', 'features': ('price',)}
    >>> as_columns(None, {"lable": "clicks"})
    Traceback (most recent call last):
    seq2slate.errors.UsageError: there is no role 'lable' (did you mean 'label'?); roles are list_id, item_id, ...
    """
    below, given = given_roles(columns), dict(roles or {})
    if not given:
        return Columns.from_dict(below)
    base = Columns.from_dict(below)
    claimed = Columns.from_dict({"list_id": base.list_id, "item_id": base.item_id, **given})._named()
    kept = {role: value for role, value in base.changes().items() if role not in given}
    if "position" in given or "order_by" in given:
        kept = {role: value for role, value in kept.items() if role not in ("position", "order_by")}
    for role in kept.keys() & set(_SEVERAL):
        taken = {
            name
            for other, names in claimed.items()
            if other in given and frozenset((role, other)) not in _MAY_SHARE
            for name in names
        }
        kept[role] = tuple(name for name in kept[role] if name not in taken)
    return Columns.from_dict(kept | given)


def join_columns(roles: Iterable[Columns]) -> Columns:
    """Return roles that read the columns of all; those that declare nothing fit any ids, label and base order.

    Raises:
        UsageError: They differ in `list_id`, `item_id`, `label` or the base order.

    >>> join_columns([Columns(label="y", features=["a"]), Columns(label="y", features=["b"], context=["c"])]).changes()
    {'label': 'y', 'features': ('a', 'b'), 'context': ('c',)}
    """
    parts = list(dict.fromkeys(roles))
    telling = [one for one in parts if one.changes()]
    if not telling:
        return Columns()
    for role in ("list_id", "item_id", "label", "position", "order_by"):
        values = list(dict.fromkeys(getattr(one, role) for one in telling))
        if len(values) > 1:
            raise UsageError(
                f"the rankers were trained with different columns as {role}: {values[0]!r} and {values[1]!r}; say "
                f"which one to read: columns={{{role!r}: 'NAME'}} (--{role.replace('_', '-')} NAME)"
            )
    joined = {
        role: tuple(dict.fromkeys(name for one in parts for name in getattr(one, role) or ())) for role in _SEVERAL
    }
    read = {name for role, names in joined.items() if role != "ignore" for name in names}
    joined["ignore"] = tuple(name for name in joined["ignore"] if name not in read)
    changes: dict[str, Any] = dict(joined)
    if any(one.features is None for one in parts):
        changes["features"] = None
    return replace(telling[0], **changes)


def given_roles(columns: Columns | Mapping[str, Any] | None, roles: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the roles that somebody gave; of `Columns`, which cannot tell, those that differ from the defaults.

    >>> given_roles({"label": "clicks"}, {"list_id": "list_id"})
    {'label': 'clicks', 'list_id': 'list_id'}
    """
    if columns is None:
        columns = {}
    if not isinstance(columns, Columns | Mapping):
        raise UsageError(f"columns must be seq2slate.Columns or a dict of roles, not {type(columns).__name__}")
    return {**(columns.changes() if isinstance(columns, Columns) else columns), **(roles or {})}


def roles_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of roles that belongs to one file of data: `NAME.columns.toml` for `NAME.csv`."""
    path = Path(path)
    bare = Path(path.stem) if path.suffix.lower() == ".gz" else Path(path.name)
    return path.with_name(f"{bare.stem}.columns.toml")


def load_roles(path: str | os.PathLike[str]) -> Columns:
    """Return the roles that a TOML file declares, with the keys of `Columns`."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, thousands of digits or of brackets
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return Columns.from_dict(values, str(path))


def suggest(name: str, names: Iterable[str]) -> str:
    """Return ` (did you mean 'X'?)` if one of the names is close, and an empty text otherwise."""
    by_lower = {other.lower(): other for other in names}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


class ColumnUse(NamedTuple):
    """What one column of a table is taken for."""

    name: str
    role: str
    """Such as `list_id`, `label`, `base order`, `feature`, `categorical`, `context`, `impression` or `ignored`; several
    are separated by commas."""
    note: str = ""


class ColumnRoles(NamedTuple):
    """The roles of all columns of one table, as they were resolved."""

    columns: Columns
    """What was asked for."""
    uses: tuple[ColumnUse, ...]
    """Every column of the table, in its order."""
    base_order: str = "the order of the rows"
    """Where the base order comes from."""
    warnings: tuple[str, ...] = ()
    """Columns that are probably not what they are taken for, with the cure."""
    list_id_type: str = "string"
    item_id_type: str = "string"
    """Arrow types that the ids came in: they are text inside."""
    rows_are_lists: bool = False
    """Whether a row is a list, and not an item."""
    is_own: bool = False
    """Whether seq2slate wrote the table: its columns need no roles."""
    origin: Columns | None = None
    """The roles of the table that such a table was made from, if they are known."""

    def role_of(self, name: str) -> str:
        """Return the role of a column."""
        return next(use.role for use in self.uses if use.name == name)

    def merged(self, other: ColumnRoles | None) -> ColumnRoles | None:
        """Return the roles of two tables together; None if their columns were declared differently."""
        if other is None or other.columns != self.columns:
            return None
        if other == self:
            return self
        notes = {use.name: use for use in (*other.uses, *self.uses)}
        return self._replace(
            uses=tuple(notes[name] for name in dict.fromkeys(use.name for use in (*self.uses, *other.uses))),
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            list_id_type=self.list_id_type if self.list_id_type == other.list_id_type else "string",
            item_id_type=self.item_id_type if self.item_id_type == other.item_id_type else "string",
            is_own=self.is_own and other.is_own,
            origin=self.origin if self.origin == other.origin else None,
        )

    def for_prediction(self) -> Columns:
        """Return roles that read the same columns again, and ignore all others by name.

        A table that seq2slate wrote stands for the one that it was made from.
        """
        if self.is_own:
            return self._on_origin()
        roles = {use.name: _parts(use) for use in self.uses}
        elsewhere = {"item_id", "list_id", "context"}
        read = [
            name
            for name, parts in roles.items()
            if parts & {"feature", "categorical"} and not parts & elsewhere and name not in self.columns.time_parts
        ]
        return replace(
            self.columns,
            features=None if "features" in read else tuple(read),  # vectors may come as columns next time
            categorical=tuple(name for name, parts in roles.items() if "categorical" in parts),
            context=tuple(name for name, parts in roles.items() if "context" in parts),
            ignore=(),
        )

    def _on_origin(self) -> Columns:
        """Return the roles of the original table, with those that were asked for in their place."""
        origin, asked = self.origin or Columns(), self.columns.changes()
        asked.pop("ignore", None)
        for role in {"categorical", "context"} & asked.keys():
            others = [name for name in getattr(origin, role) if not self.columns.declares(name)]
            asked[role] = (*others, *asked[role])
        return as_columns(origin, asked)

    def __str__(self) -> str:
        """Return a table of the columns, and what the base order is."""
        rows = [("column", "taken for", "note"), *self.uses]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        lines = [f"{name:<{widths[0]}}  {role:<{widths[1]}}  {note}".rstrip() for name, role, note in rows]
        return "\n".join([*lines, f"base order: {self.base_order}"])

    def _repr_html_(self) -> str:
        return table(["column", "taken for", "note"], self.uses) + element("p", f"base order: {self.base_order}")


def _parts(use: ColumnUse) -> set[str]:
    return set(use.role.split(", "))


def explain_missing_labels(lists: ItemLists) -> str:
    """Say which column could be the label of lists that have none, and how to declare it.

    >>> from seq2slate import from_table
    >>> import pyarrow as pa
    >>> lists = from_table(pa.table({"list_id": [1, 1], "item_id": [1, 2], "clicks": [0, 1], "price": [3.5, 2]}))
    >>> explain_missing_labels(lists)
    "no column is the label: declare one, such as label='clicks' (--label clicks); it could be clicks"
    """
    if lists.roles is None:
        return "give clicks or grades as labels"
    likely = _possible_labels(lists)
    if not likely:
        names = ", ".join(use.name for use in lists.roles.uses)
        return f"no column is the label: declare it with label='NAME' (--label NAME); the columns are {names}"
    return (
        f"no column is the label: declare one, such as label={likely[0]!r} (--label {likely[0]}); "
        f"it could be {', '.join(likely)}"
    )


def _possible_labels(lists: ItemLists) -> list[str]:
    """Return columns with a telling name, and those with a few whole numbers from 0; the most likely ones first."""
    assert lists.roles is not None
    names = [use.name for use in lists.roles.uses if _parts(use) <= {"feature", "relevance", "ignored"}]
    telling = [name for name in names if any(word in name.lower() for word in _LABEL_WORDS)]
    graded = [name for j, name in enumerate(lists.feature_names) if name in names and _are_grades(lists.features[:, j])]
    likely = Counter([*telling, *telling, *graded])
    return [name for name, _ in likely.most_common(5)]


def _are_grades(values: Any) -> bool:
    found = np.unique(values)
    return len(found) in range(2, 11) and bool((found >= 0).all() and (found == np.floor(found)).all())


def _as_names(role: str, value: Any) -> tuple[str, ...]:
    """Return the names of columns as a tuple; a single text is one name."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
        names = tuple(value)
        if all(isinstance(name, str) for name in names):
            return names
    raise UsageError(f"{role} must be the name of a column, or several names, got {value!r}")


def check_columns_exist(
    columns: Columns, names: Sequence[str], source: str, vector: Sequence[str] = (), *, labelled: bool
) -> None:
    """Raise a DataError that names a declared column that is not there.

    The label may be missing unless `labelled`. Numbers that stand in a vector, whose names are `vector`, can be read or
    left out one by one.
    """
    for role, name in columns.missing_from(names):
        if (role == "label" and not labelled) or (role in ("features", "ignore") and name in vector):
            continue
        found = ", ".join(names) or "no columns"
        if (role, name) in (("list_id", "list_id"), ("item_id", "item_id")):
            raise DataError(
                f"{source}: no column {name}; say which column has the {role}: {role}='NAME', "
                f"columns={{{role!r}: 'NAME'}} of an estimator (--{role.replace('_', '-')} NAME); found {found}"
            )
        raise DataError(f"{source}: no column {name!r}, which is declared {role}{suggest(name, names)}; found {found}")
