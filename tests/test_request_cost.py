"""Every body costs what its size costs: CPU, memory and log, whatever is in it.

`benchmarks.request_cost` makes the bodies and measures them. CPU has a factor here, since the machine may be busy;
`python -m benchmarks.request_cost` prints the figures.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from benchmarks.request_cost import ATTACKS, LARGEST, SHAPES, Costs, random_body
from seq2slate.log.impression_log import open_log
from seq2slate.serving.messages import MAX_ABSENT, MAX_COLUMNS, ReadNames, read_click, read_rerank
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts
from tests.test_rerank_service import with_columns

CPU_FACTOR = 5


@pytest.mark.parametrize("shape", SHAPES)
def test_a_body_costs_what_its_size_costs(tmp_path: Path, shape: str) -> None:
    cost = Costs(tmp_path, has_model=False).of(random_body(shape, seed=1), repeats=2)
    assert cost.status == 200, cost.error
    assert not cost.excess(cpu_factor=CPU_FACTOR)


@pytest.mark.slow
@pytest.mark.parametrize("has_model", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_many_bodies_cost_what_their_size_costs(tmp_path: Path, shape: str, has_model: bool) -> None:
    costs = Costs(tmp_path, has_model=has_model)
    for seed in range(2, 14):
        cost = costs.of(random_body(shape, seed), repeats=2)
        assert (cost.status, cost.error, cost.excess(cpu_factor=CPU_FACTOR)) == (200, "", "")


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_costs_what_its_size_costs(tmp_path: Path, attack: str) -> None:
    cost = Costs(tmp_path, has_model=False).of(ATTACKS[attack]())
    assert cost.size <= LARGEST
    assert not cost.excess(cpu_factor=CPU_FACTOR)


def read(body: Any, **limits: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_rerank(content, **{"max_items": 1000, **limits})


def columns(n: int, **more: Any) -> dict[str, Any]:
    return {"unit": "u", "item_ids": [str(one) for one in range(n)], **more}


def names(n: int) -> list[str]:
    return [f"c{one}" for one in range(n)]


def named(n_items: int, n_names: int) -> dict[str, Any]:
    """Items of which each has one of the names."""
    items = [{"id": str(one), "categorical": {f"c{one % n_names}": "x"}} for one in range(n_items)]
    return {"unit": "u", "items": items}


@pytest.mark.parametrize(
    ("most", "one_more", "said"),
    [
        (
            columns(2, context=dict.fromkeys(names(MAX_COLUMNS), 1)),
            columns(2, context=dict.fromkeys(names(MAX_COLUMNS + 1), 1)),
            f"context: {MAX_COLUMNS + 1} names are more than the limit of {MAX_COLUMNS}",
        ),
        (
            columns(1, categorical={name: ["x"] for name in names(MAX_COLUMNS)}),
            columns(1, categorical={name: ["x"] for name in names(MAX_COLUMNS + 1)}),
            f"categorical: {MAX_COLUMNS + 1} names are more than the limit of {MAX_COLUMNS}",
        ),
        (
            {"unit": "u", "items": [{"id": "a", "categorical": dict.fromkeys(names(MAX_COLUMNS), "x")}]},
            {"unit": "u", "items": [{"id": "a", "categorical": dict.fromkeys(names(MAX_COLUMNS + 1), "x")}]},
            f"categorical: {MAX_COLUMNS + 1} names are more than the limit of {MAX_COLUMNS}",
        ),
        (
            columns(1, features=[[1] * MAX_COLUMNS]),
            columns(1, features=[[1] * (MAX_COLUMNS + 1)]),
            f"features: {MAX_COLUMNS + 1} columns are more than the limit of {MAX_COLUMNS}",
        ),
        (
            named(1000, MAX_ABSENT // 1000 + 1),
            named(1000, MAX_ABSENT // 1000 + 2),
            f"categorical: {MAX_ABSENT + 1000} cells that items do not have are more than the limit of {MAX_ABSENT}",
        ),
        (
            columns(1000),
            columns(1001),
            "items: 1001 are more than the limit of 1000",
        ),
    ],
    ids=["context", "categorical", "categorical of items", "features", "absent", "items"],
)
def test_what_is_too_much_is_refused_by_field_and_limit(most: Any, one_more: Any, said: str) -> None:
    read(most)
    with pytest.raises(HTTPException) as refused:
        read(one_more)
    assert (refused.value.status_code, refused.value.detail) == (422, said)


def test_values_are_counted_outside_of_texts() -> None:
    commas = ',[{"\\"' * 20_000
    request = read(columns(2, categorical={"c": [commas, "\\"]}), max_values=10)
    assert request.categorical["c"] == [commas, "\\"]
    content = b'{"unit":"u","item_ids":["a"],"features":[[%b]]}'
    assert read(content % b",".join([b"1"] * 98), max_values=100).features.shape == (1, 98)  # a unit, an id, and these
    for values, said in (
        (content % b",".join([b"1"] * 99), "body: 101 values are more than the limit of 100"),
        (content % (b'"' + b"x" * 70_000 + b'",' + b"[],[" * 4100), "body: 8204 lists and objects are more than"),
    ):
        with pytest.raises(HTTPException) as refused:
            read(values, max_values=100 if b"[]" not in values else 250_000)
        assert (refused.value.status_code, refused.value.detail[: len(said)]) == (422, said)


def test_a_click_is_small() -> None:
    with pytest.raises(HTTPException) as refused:
        read_click(b'{"slate_id":' + b"[" * 20_000)
    assert refused.value.status_code == 413
    assert read_click(json.dumps({"slate_id": "s", "item": "\u00e9" * 512}).encode()).item == "é" * 512


def test_columns_that_no_model_reads_are_not_built() -> None:
    reads = ReadNames(frozenset({"brand"}), frozenset({"hour"}))
    given = {"brand": "x", "other": "y", "item_id": "0"}
    context = {"hour": 9, "city": "Oslo", "nan": float("nan")}
    of_items = read({"unit": "u", "items": [{"id": "0", "categorical": given}], "context": context}, reads=reads)
    of_columns = read(
        columns(1, categorical={name: [value] for name, value in given.items()}, context=context), reads=reads
    )
    for request in (of_items, of_columns):
        assert (request.categorical, request.context) == ({"brand": ["x"]}, {"hour": 9})
    assert read(columns(1, context={"city": "Oslo"}), reads=reads).context is None
    assert read(columns(1, context=context)).context == {"hour": 9, "city": "Oslo", "nan": None}
    with pytest.raises(HTTPException, match=r"categorical\.item_id"):
        read(columns(1, categorical={"item_id": ["another"]}), reads=reads)


def test_the_log_has_the_columns_that_some_model_reads(tmp_path: Path) -> None:
    deployment = with_columns()
    assert deployment.reads == ({"brand"}, {"hour"})
    body = columns(2, features=[[1, 2], [3, 4]], categorical={"brand": ["x", "y"], "size": ["S", "M"]})
    body["context"] = {"hour": 1.0, "city": "Oslo"}

    async def logged() -> Any:
        with open_log(tmp_path / "log.db") as store:
            service = RerankService(lambda: deployment, store, Monitor(), Timeouts(deadline_ms=60_000))
            answer = await service.rerank(read(body, reads=deployment.reads))
            assert not answer.fallback
            return store.get(str(answer.slate_id))

    impression = asyncio.run(logged())
    assert impression.categorical == {"brand": ["x", "y"]}
    assert impression.context == {"hour": 1.0}
