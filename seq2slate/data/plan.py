"""From declared roles to a plan: what each column of one table becomes.

A role that is declared wins. Then come the names with a meaning of their own (`label`, `position`, `features`,
`relevance`, the columns of impressions), and then the type: numbers are features, text and dictionaries (the `category`
of pandas) are categorical and, where a row is a list, a column with one value a row is context. A timestamp has no such
default, and a column that is neither number nor text is left out with a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from seq2slate.data.columns import FIELDS, ImpressionColumns, is_list, is_moment, is_number, is_text
from seq2slate.data.lists import ITEM_ID
from seq2slate.data.roles import ColumnRoles, Columns, ColumnUse, check_columns_exist
from seq2slate.errors import DataError

METADATA = b"seq2slate"
"""Where the schema of a written table keeps what its columns cannot say."""
VERSION = 2
"""Since 2 there are impressions, which readers of version 1 would take for features; without them a file is still 1."""
VECTORS = "features"
"""The column with one vector an item."""

_INDEX_NAME = re.compile(r"(Unnamed: \d+)?")
"""What pandas calls an index without a name in a CSV file, and after reading it back."""

Kind: TypeAlias = Literal["number", "category", "time", "vectors"]


@dataclass
class Plan:
    """What each column of a table becomes, by name and in the order of the table."""

    rows_are_lists: bool
    list_id: tuple[str, ...]
    item_id: str
    impressions: ImpressionColumns
    is_own: bool
    """Whether seq2slate wrote the table: its columns are what they say."""
    left_out: frozenset[str] = frozenset()
    """Numbers of the vectors in `features` that no model reads, by the names that the table was written with."""
    position: str | None = None
    order_by: str | None = None
    descending: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    """Columns with a field of ItemLists of their own."""
    per_item: dict[str, Kind] = field(default_factory=dict)
    per_list: dict[str, Kind] = field(default_factory=dict)
    automatic: list[str] = field(default_factory=list)
    """Columns that nobody declared: their type decided."""
    uses: list[ColumnUse] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    roles: ColumnRoles = field(init=False)

    @property
    def item_columns(self) -> list[str]:
        """Every column with one value an item."""
        order = [name for name in (self.position, self.order_by) if name is not None]
        names = [self.item_id, *order, *self.fields, *self.per_item, *self.impressions.per_item]
        own = [name for name in names if name not in self.list_id]
        return list(dict.fromkeys(own))

    @property
    def list_columns(self) -> list[str]:
        """Every column with one value a list, beside the ids."""
        return list(dict.fromkeys([*self.per_list, *self.impressions.per_list]))

    @property
    def read(self) -> list[str]:
        """Every column that has to be read."""
        return list(dict.fromkeys([*self.list_id, *self.item_columns, *self.list_columns]))


def make_plan(schema: Any, columns: Columns, source: str, *, labelled: bool = True) -> Plan:
    """Return what the columns of a table with this Arrow schema become.

    Args:
        schema: The Arrow schema; metadata of seq2slate in it is heeded.
        columns: The declared roles.
        source: The name of the table in error messages.
        labelled: Whether labels are read; if not, a declared label may be missing.

    """
    if doubled := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise DataError(f"{source}: column {doubled[0]} occurs twice")
    facts, asked = checked_metadata(schema, source), columns
    origin = Columns.from_dict(facts["origin"]) if "origin" in facts else None
    if facts:
        columns = _of_own_table(columns, schema, facts, origin)
    vector = tuple(facts.get("feature_names", ())) if VECTORS in schema.names else ()
    check_columns_exist(columns, schema.names, source, vector, labelled=labelled)
    claimed = {name for role in ("label", "position", "item_id") if (name := getattr(columns, role)) is not None}
    claimed |= {*columns.list_id_columns, *columns.categorical, *columns.context, *columns.ignore, *columns.time_parts}
    plan = Plan(
        rows_are_lists=is_list(schema.field(columns.item_id).type),
        list_id=columns.list_id_columns,
        item_id=columns.item_id,
        impressions=ImpressionColumns.of(
            [name for name in schema.names if name not in claimed], before_slots="aside" in facts
        ),
        is_own=bool(facts),
        left_out=frozenset(
            name
            for name in vector
            if name in columns.ignore
            or not (columns.features is None or VECTORS in columns.features or name in columns.features)
        ),
    )
    for name in plan.list_id:
        if is_list(kind := schema.field(name).type):
            raise DataError(
                f"{source}: {name} holds {kind}, but a list_id is text or a whole number; several columns are joined "
                'with list_id=["a", "b"]'
            )
    _set_order(plan, columns, schema)
    resolver = _Resolver(
        plan, columns, source, frozenset(facts.get("context", ())), _index_columns(schema), vector, labelled
    )
    for one in schema:
        if not is_unnamed_index(one.name):
            resolver.resolve(one.name, one.type)
    if plan.item_id != ITEM_ID and plan.per_item.get(plan.item_id) == plan.per_item.get(ITEM_ID) == "category":
        raise DataError(
            f"{source}: {plan.item_id} and {ITEM_ID} are both categorical, and the ids of the items are called "
            f"{ITEM_ID} then; rename the column {ITEM_ID}, or ignore it"
        )
    plan.roles = ColumnRoles(
        asked,
        tuple(plan.uses),
        _order_text(plan),
        tuple(plan.warnings),
        _id_type([schema.field(name).type for name in plan.list_id]),
        _id_type([_item_type(schema.field(plan.item_id).type)]),
        plan.rows_are_lists,
        plan.is_own,
        origin,
    )
    return plan


def _of_own_table(columns: Columns, schema: Any, facts: Mapping[str, Any], origin: Columns | None) -> Columns:
    """Return roles for a table that seq2slate wrote, in which ids, label and base order have names of their own.

    A role may be that of another table, on which a model was trained before the lists of it were written: the role is
    that of the origin, or its column is not here, or is one of the items. Then the table says itself what its columns
    are.
    """
    names = schema.names
    absent = {role for role, _ in columns.missing_from(names)}
    if any(name in names and is_list(schema.field(name).type) for name in columns.list_id_columns):
        absent.add("list_id")
    own: dict[str, Any] = {}
    for role, name in (("list_id", "list_id"), ("item_id", "item_id"), ("label", "label"), ("order_by", None)):
        value = getattr(columns, role)
        is_foreign = role in absent or (origin is not None and value == getattr(origin, role))
        if value not in (name, None) and is_foreign and (name is None or name in names):
            own[role] = getattr(Columns(), role)
    if "position" in absent:
        own["position"] = None
    if "time_parts" in absent:
        own["time_parts"] = tuple(name for name in columns.time_parts if name in names)
    if own:
        own |= {
            role: tuple(name for name in getattr(columns, role) if name in names) for role in ("categorical", "context")
        }
        columns = replace(columns, features=None, **own)
    if facts.get("ids_are_categories") and columns.item_id not in columns.categorical:
        columns = replace(columns, categorical=(*columns.categorical, columns.item_id))
    return columns


def _set_order(plan: Plan, columns: Columns, schema: Any) -> None:
    names = schema.names
    if columns.order_by is not None:
        is_name = columns.order_by in names
        plan.order_by = columns.order_by if is_name else columns.order_by.removeprefix("-")
        plan.descending = not is_name
        return
    if columns.position is not None:
        plan.position = columns.position
    elif "position" in names and not columns.declares("position"):
        is_per_item = is_list(schema.field("position").type) or not plan.rows_are_lists
        plan.position = "position" if is_per_item else None


def _order_text(plan: Plan) -> str:
    if plan.position is not None:
        return f"the column {plan.position}"
    if plan.order_by is not None:
        return f"sorted by {plan.order_by}, {'highest' if plan.descending else 'lowest'} first"
    return "the order of the candidates in each row" if plan.rows_are_lists else "the order of the rows"


def _id_type(kinds: list[Any]) -> str:
    """Return the Arrow type of an id if it is a number; everything else is text."""
    kind = kinds[0].value_type if pa.types.is_dictionary(kinds[0]) else kinds[0]
    is_kept = len(kinds) == 1 and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return str(kind) if is_kept else "string"


def is_unnamed_index(name: str) -> bool:
    """Say whether a column is the index of a pandas DataFrame that has no name."""
    return name.startswith("__index_level_")


def _index_columns(schema: Any) -> frozenset[str]:
    """Return the columns that were a named index of a pandas DataFrame."""
    facts = schema.pandas_metadata or {}
    return frozenset(name for name in facts.get("index_columns", ()) if isinstance(name, str))


def _item_type(kind: Any) -> Any:
    return kind.value_type if is_list(kind) else kind


@dataclass
class _Resolver:
    """Decides on the columns one by one."""

    plan: Plan
    columns: Columns
    source: str
    own_context: frozenset[str]
    """Columns that the metadata of a table in the item layout calls context."""
    index: frozenset[str]
    """Columns that were the index of a pandas DataFrame."""
    vector: tuple[str, ...]
    """The names of the numbers in `features`."""
    labelled: bool
    """Whether labels are read."""

    def resolve(self, name: str, kind: Any) -> None:
        """Give a column its place in the plan."""
        roles, note = self._ids_and_fields(name, kind) or self._declared(name, kind) or self._automatic(name, kind)
        if name == self.plan.order_by:
            roles = ["base order", *(role for role in roles if role != "ignored")]
            note = "highest first" if self.plan.descending else "lowest first"
        self.plan.uses.append(ColumnUse(name, ", ".join(roles), note))

    def _ids_and_fields(self, name: str, kind: Any) -> tuple[list[str], str] | None:
        plan, columns = self.plan, self.columns
        per_list_row = plan.rows_are_lists and not is_list(kind)
        if name in plan.list_id:
            roles = ["list_id"]
            if name in columns.context or (name in columns.categorical and per_list_row):
                plan.per_list[name] = "category"
                roles.append("context")
            elif name in columns.categorical:
                plan.per_item[name] = "category"
                roles.append("categorical")
            return roles, "joined" if len(plan.list_id) > 1 else ""
        if name == plan.item_id:
            if name not in columns.categorical:
                return ["item_id"], ""
            plan.per_item[name] = "category"
            return ["item_id", "categorical"], ""
        if name == columns.label or (name == "label" and columns.label is None and not columns.declares(name)):
            if not self.labelled:
                return ["ignored"], "labels are not read"
            plan.fields[name] = FIELDS["label"]
            return ["label"], ""
        if name == plan.position:
            return ["base order"], ""
        if name in plan.impressions.per_item or name in plan.impressions.per_list:
            return ["impression"], ""
        return None

    def _declared(self, name: str, kind: Any) -> tuple[list[str], str] | None:
        columns = self.columns
        if name in columns.ignore:
            return ["ignored"], "as declared"
        if name in columns.time_parts:
            return self._place(name, kind, "time")
        if name in columns.context:
            return self._place(name, kind, self._kind(name, kind), context=True)
        if name in columns.categorical:
            self._kind(name, kind)
            return self._place(name, kind, "category")
        if name in (columns.features or ()):
            vectors = name == VECTORS and is_list(kind)
            return self._place(name, kind, "vectors" if vectors else self._kind(name, kind))
        if name == VECTORS and set(columns.features or ()) & set(self.vector):
            return self._place(name, kind, "vectors")
        if name in FIELDS and name != "label":
            self.plan.fields[name] = FIELDS[name]
            return [name.replace("_", " ")], "known to simulated users, never a feature"
        if (instead := self._replaced_by(name)) is not None:
            return ["ignored"], instead
        if name in self.index or _INDEX_NAME.fullmatch(name):
            return ["ignored"], "the index of a DataFrame"
        if columns.features is not None and name not in self.own_context:
            return ["ignored"], "not among the features"
        return None

    def _automatic(self, name: str, kind: Any) -> tuple[list[str], str]:
        if name == VECTORS:
            return self._place(name, kind, "vectors")
        if name in self.own_context:
            return self._place(name, kind, self._kind(name, kind), context=True)
        if name == self.plan.order_by and (is_moment(_item_type(kind)) or not is_number(_item_type(kind))):
            return ["ignored"], ""
        found = self._kind(name, kind, declared=False)
        if found is None:
            self.plan.warnings.append(
                f"column {name!r} is ignored: it holds {kind}, neither numbers nor text; convert it, or declare "
                f"ignore=[{name!r}] to silence this"
            )
            return ["ignored"], f"{kind}, neither numbers nor text"
        self.plan.automatic.append(name)
        return self._place(name, kind, found)

    def _replaced_by(self, name: str) -> str | None:
        """Say what has the role that a column of this name would have."""
        columns = self.columns
        if name == "position" and self.plan.position != name:
            chosen = columns.order_by or columns.position
            return chosen and f"the base order is {chosen}"
        chosen = getattr(columns, name) if name in ("list_id", "item_id", "label") else None
        return chosen and f"the {name} is {chosen if isinstance(chosen, str) else ', '.join(chosen)}"

    def _kind(self, name: str, kind: Any, *, declared: bool = True) -> Any:
        """Return what the values of a column are; None if they cannot be read, an error if somebody declared them."""
        values = _item_type(kind) if self.plan.rows_are_lists else kind
        if pa.types.is_null(values) and name in (self.columns.features or ()):
            return "category" if name in self.columns.categorical else "number"
        if pa.types.is_dictionary(values) or is_text(values):
            return "category"
        if name in self.columns.categorical and (is_number(values) or is_moment(values)):
            return "category"
        if is_moment(values):
            has_order = self.columns.order_by is not None or self.plan.position is not None
            order = "" if has_order else f", order_by={name!r}"
            raise DataError(
                f"{self.source}: column {name} holds {values}, which is no feature as it stands; declare "
                f"time_parts=[{name!r}] for hour, weekday and days{order}, or ignore=[{name!r}]"
            )
        if is_number(values):
            return "number"
        if declared:
            raise DataError(
                f"{self.source}: column {name} holds {kind}, neither numbers nor text; convert or ignore it"
            )
        return None

    def _place(self, name: str, kind: Any, found: Kind, *, context: bool = False) -> tuple[list[str], str]:
        """Put a column among those of items or of lists."""
        plan = self.plan
        is_context = context or name in self.columns.context
        if plan.rows_are_lists and found != "vectors":
            if is_context and is_list(kind):
                raise DataError(f"{self.source}: column {name} is declared context, but holds a list in each row")
            is_context = not is_list(kind)
        (plan.per_list if is_context else plan.per_item)[name] = found
        roles = ["context"] if is_context else []
        if found == "category":
            roles.append("categorical")
        return roles or ["feature"], self._note(found)

    def _note(self, found: Kind) -> str:
        if found == "time":
            return "hour, weekday and days"
        if found != "vectors" or not self.vector:
            return ""
        read = [name for name in self.vector if name not in self.plan.left_out]
        return ", ".join(read[:4]) + (f" … ({len(read)})" if len(read) > 4 else "")


# Metadata of tables that seq2slate wrote


def read_metadata(schema: Any) -> dict[str, Any]:
    """Return what seq2slate wrote beside the columns; empty for any other table."""
    text = (schema.metadata or {}).get(METADATA)
    return dict(json.loads(text)) if text else {}


def checked_metadata(schema: Any, source: str) -> Mapping[str, Any]:
    """Return the metadata of seq2slate, or raise a DataError if they are damaged or newer than this version."""
    try:
        facts = read_metadata(schema)
        is_newer = facts.get("version", VERSION) > VERSION
        names = [facts.get(key, []) for key in ("feature_names", "context", "aside")]
        is_whole = is_newer or all(is_names(one) and all(map(is_unicode, one)) for one in names)
        if is_whole and not is_newer:
            Columns.from_dict(facts.get("origin", {}))
    except (ValueError, TypeError, AttributeError, RecursionError):
        is_newer = is_whole = False
    if is_newer:
        raise DataError(f"{source}: written by a newer version of seq2slate; upgrade to read it")
    if not is_whole:
        raise DataError(f"{source}: the metadata of seq2slate in the schema is damaged; write the file again")
    return facts


def is_unicode(text: str) -> bool:
    """Say whether a text that was read from JSON can be written as UTF-8: it holds no half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_names(value: Any) -> bool:
    """Say whether a value that was read from JSON is a list of text."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
