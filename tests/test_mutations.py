"""Damaged inputs are read, or refused with an error that names the place: no traceback, no abort, no hang."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.exceptions import HTTPException

from benchmarks import mutate
from benchmarks.mutations import MEGABYTES, Outcome
from seq2slate.cli import main
from seq2slate.data import parquet
from seq2slate.data.files import read
from seq2slate.data.lists import ItemLists
from seq2slate.data.plan import make_plan
from seq2slate.data.roles import Columns
from seq2slate.errors import DataError
from seq2slate.serving.messages import ClickRequest, read_click, read_rerank

FOOTERS = """
    import sys
    from pathlib import Path
    from seq2slate.data.files import read
    from seq2slate.errors import Seq2SlateError

    path = Path(sys.argv[1])
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(footer, len(whole)):
        for change in (0x01, 0x10, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= change
            path.write_bytes(damaged)
            try:
                read(path)
            except Seq2SlateError as error:
                assert str(path) in str(error), error
"""


def test_no_damaged_byte_of_a_parquet_footer_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"list_id": ["a"], "item_id": [["x", "y"]], "price": [[1.5, 2.0]]}), path)
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FOOTERS), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def refused(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the command line says of a file, after it has ended with code 2."""
    monkeypatch.setattr(sys, "argv", ["seq2slate", "inspect", str(path)])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    return capsys.readouterr().err


TEXTS = {
    "input.txt": (f"1 qid:1 1:2\n0 qid:1 {'9' * 5000}:1\n".encode(), "line 2 (list '1'): feature 9+…, .* 5,000 digits"),
    "surrogate.jsonl": (
        b'{"list_id": 1, "item_id": [1]}\n{"list_id": 2, "item_id": [2], "\\ud800": [1]}',
        r"line 2: the name '\\ud800' has half a surrogate pair",
    ),
    "names.jsonl": (
        b'{"list_id": 1, "item_id": [1], "features": [[1]], "feature_names": ["\\udc00"]}',
        r"line 1: the name '\\udc00' has half a surrogate pair",
    ),
    "twice.jsonl": (
        b'{"list_id": 1, "item_id": [1]}\n{"list_id": 2, "item_id": [2], "label": [0], "label": [1]}',
        "line 2: 'label' occurs twice in an object",
    ),
    "inside.jsonl": (b'{"list_id": 1, "item_id": [1], "a": [{"b": 1, "b": 2}]}', "line 1: 'b' occurs twice"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_damaged_line_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, said = TEXTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said.replace("(", r"\(").replace(")", r"\)")):
        read(tmp_path / name)
    assert str(tmp_path / name) in refused(tmp_path / name, capsys, monkeypatch)


@pytest.mark.parametrize("column", ["list_id", "item_id", "city"])
def test_text_of_parquet_that_is_not_utf8_is_named_with_its_column(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    table = {"list_id": [1, 2], "item_id": [1, 2], "price": [1.5, 2.0]} | {column: texts}
    pq.write_table(pa.table(table), tmp_path / "lists.parquet")
    with pytest.raises(DataError, match=rf"lists.parquet, rows 0 to 1: column {column} is damaged: .*UTF8"):
        read(tmp_path / "lists.parquet")
    assert column in refused(tmp_path / "lists.parquet", capsys, monkeypatch)


@pytest.mark.parametrize("facts", ["[" * 9000, '{"feature_names": ["\\ud800"]}', '{"context": 1}', "\xff", "[1]", "{"])
def test_broken_metadata_of_our_own_are_named(facts: str, tmp_path: Path) -> None:
    table = pa.table({"list_id": [1, 2], "item_id": [1, 2], "price": [1.5, 2.0]})
    path = tmp_path / "lists.parquet"
    pq.write_table(table.replace_schema_metadata({"seq2slate": facts.encode("latin-1")}), path)
    with pytest.raises(DataError, match=r"lists.parquet: the metadata of seq2slate in the schema is damaged"):
        read(path)


def test_a_name_of_a_column_of_parquet_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"list_id": [1], "item_id": [1], "zzzz": [1.5]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"zzzz", b"z\xffzz"))
    with pytest.raises(DataError, match=r"lists.parquet: not a Parquet file, or cut off or damaged"):
        read(path)


@pytest.mark.parametrize("roles", ["a = " + "[" * 9000, f"a = {'9' * 5000}", "a = '"])
def test_broken_roles_are_named(roles: str, tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(roles)
    (tmp_path / "lists.csv").write_text("list_id,item_id\n1,2\n")
    with pytest.raises(DataError, match=r"columns\.toml"):
        read(tmp_path / "lists.csv")


def test_infinite_positions_are_refused_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "lists.csv").write_text("list_id,item_id,position\n1,2,inf\n1,3,inf\n")
    with pytest.raises(DataError, match=r"line 3 .*: position inf is taken by another item"):
        read(tmp_path / "lists.csv")


def test_batches_have_about_as_many_values_as_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = ItemLists([[float(n)] for n in range(600)], range(0, 601, 6))
    parquet.write_parquet(lists, tmp_path / "lists.parquet")
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 10 * (1 + 6 + 6))  # an id, six items and their features
    sizes = []
    with parquet._opened(tmp_path / "lists.parquet") as file:
        plan = make_plan(file.schema_arrow, Columns(), "")
        sizes = [batch.num_rows for batch in parquet._batches("", file, plan)]
    assert sizes == [10] * 10


def test_mutations_are_what_their_number_says(tmp_path: Path) -> None:
    assert list(mutate.work(3, 9)) != list(mutate.work(9, 15))
    one, two = ([said.get("outcome") for said in mutate.work(0, 30)] for _ in range(2))
    assert one == two
    assert {"read", "refused", None} == set(one)


def test_an_input_that_ends_its_worker_or_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'import sys, os, time; print(\'{"number": 7, "target": "x"}\', flush=True); '
    for end, why in (("os.abort()", "ended the worker with code -6"), ("time.sleep(60)", "took longer than")):
        monkeypatch.setattr(mutate, "COMMAND", (sys.executable, "-c", script + end))
        monkeypatch.setattr(mutate, "START_SECONDS", 2.0)
        outcome = Outcome()
        assert mutate._supervise(7, 9, outcome) == 8
        assert why in outcome.failures[0]["why"]


@pytest.mark.slow
def test_10_000_mutated_inputs_are_read_or_refused() -> None:
    outcome = mutate.run(10_000, first=1_000_000)
    assert not outcome.failures, outcome.failures[:3]
    assert outcome.read.total() + outcome.refused.total() == 10_000
    assert min(outcome.read.values()) > 0
    assert outcome.megabytes < MEGABYTES


TWICE = {
    b'{"unit": "u", "item_ids": ["a"], "k": 1, "k": 2}': "k",
    b'{"unit": "u", "item_ids": ["a:b"], "unit" : "v"}': "unit",
    b'{"unit": "u", "items": [{"id": "a", "title": null, "features": [1], "features": [2]}]}': "features",
    b'{"unit": "u", "items": [{"id": "a", "categorical": {"c": "x", "c": "y"}}]}': "c",
    b'{"unit": "u", "item_ids": ["a"], "context": {"\\u0063": 1, "c": "x"}}': "c",
    b'{"unit": "u", "item_ids": ["a"], "categorical": {"c": ["x"], "d": ["x"], "c"\n:\t["y"]}}': "c",
    b'{"unit": "u", "item_ids": ["a"], "features": [[NaN]], "context": {"c": 1, "c": 1}}': "c",
}


@pytest.mark.parametrize("body", TWICE)
def test_a_name_that_occurs_twice_in_a_request_is_refused(body: bytes) -> None:
    with pytest.raises(HTTPException) as refused:
        read_rerank(body, max_items=9)
    assert (refused.value.status_code, refused.value.detail) == (422, f"{TWICE[body]}: occurs twice in an object")


def test_a_name_that_occurs_twice_in_a_click_is_refused() -> None:
    with pytest.raises(HTTPException, match="item: occurs twice in an object"):
        read_click(b'{"slate_id": "s", "item": "a", "item": "b"}')
    assert read_click(b'{"slate_id": "\\":s:", "item":":a"}') == ClickRequest('":s:', ":a")


def test_texts_with_colons_and_fields_given_as_their_default_are_no_names() -> None:
    texts = {"title": 'a":"b', "categorical": {":": '"', '":': " :"}, "features": None}
    body: dict[str, Any] = {
        "unit": ":u",
        "items": [{"id": "x:y", **texts}, {"id": "::"}],
        "k": None,
        "explain": False,
        "context": {},
    }
    for space in ("", " \n"):
        request = read_rerank(json.dumps(body, separators=(",", f"{space}:{space}")).encode(), max_items=9)
        assert (request.ids, request.categorical) == (["x:y", "::"], {":": ['"', None], '":': [" :", None]})
