"""Which unit belongs to which arm, and what an experiment's file may say."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from seq2slate.errors import DataError
from seq2slate.experiments.assignment import Arm, Experiment, read_experiment

UNITS = [f"unit {number}" for number in range(20_000)]


def test_units_are_shared_in_proportion_to_the_weights() -> None:
    experiment = Experiment("e", (Arm("a", weight=1), Arm("off", weight=0), Arm("b", weight=3)))
    counts = Counter(experiment.assign(unit).name for unit in UNITS)
    assert set(counts) == {"a", "b"}
    n, share = len(UNITS), 1 / 4
    assert abs(counts["a"] - n * share) < 4 * (n * share * (1 - share)) ** 0.5


def test_the_arm_follows_from_the_hash_that_is_documented() -> None:
    experiment = Experiment("e", (Arm("a"), Arm("b")), salt="pepper")
    for unit in [*UNITS[:200], "Zoë"]:
        digest = hashlib.sha256(b"pepper\0" + unit.encode()).hexdigest()
        assert experiment.assign(unit).name == ("a" if int(digest[:16], 16) < 2**63 else "b")


def test_a_salt_assigns_the_units_anew() -> None:
    """Knowing the arm in one experiment says nothing about the arm in the next."""
    one, two = (Experiment(name, (Arm("a"), Arm("b"))) for name in ("spring", "autumn"))
    same = sum(one.assign(unit).name == two.assign(unit).name for unit in UNITS)
    assert abs(same - len(UNITS) / 2) < 4 * (len(UNITS) / 4) ** 0.5


def test_larger_weights_only_add_units_to_the_first_arm() -> None:
    before, after = (Experiment("e", (Arm("a", weight=weight), Arm("b"))) for weight in (1, 3))
    assert all(after.assign(unit).name == "a" for unit in UNITS if before.assign(unit).name == "a")


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'name = "e"\nsalt = "s"\n[[arms]]\nname = "a"\nmodel = "base"\nweight = 2\n'
        '[[arms]]\nname = "b"\nmodel = "models/new"\ntemperature = 0.5\n[[arms]]\nname = "c"\n'
    )
    arms = [
        {"name": "a", "model": "base", "weight": 2},
        {"name": "b", "model": "models/new", "temperature": 0.5},
        {"name": "c"},
    ]
    (tmp_path / "e.json").write_text(json.dumps({"name": "e", "salt": "s", "arms": arms}))
    experiment = read_experiment(tmp_path / "e.toml")
    assert experiment == read_experiment(tmp_path / "e.json")
    assert [arm.model for arm in experiment.arms] == ["base", str(tmp_path / "models/new"), None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "Expected `object`"),
        ('{"name": "e"}', "`arms`"),
        ('{"name": "e", "arms": []}', "arms: expected at least one"),
        ('{"name": "", "arms": [{"name": "a"}]}', "name: expected 1 to 128"),
        ('{"name": "e", "arms": [{"name": "a"}, {"name": "a"}]}', "'a' is used twice"),
        ('{"name": "e", "arms": [{"name": "a"}, {"name": "b", "wieght": 1}]}', r"`wieght` - at `\$.arms\[1\]`"),
        ('{"name": "e", "arms": [{"name": "a", "weight": -1}]}', r"weight: .* - at `\$.arms\[0\]`"),
        ('{"name": "e", "arms": [{"name": "a", "weight": 0}]}', "weight above 0"),
        (
            '{"name": "e", "arms": [{"name": "a", "weight": 1e308}, {"name": "b", "weight": 1e308}]}',
            "sum of the weights is infinite",
        ),
        ('{"name": "e", "arms": [{"name": "a", "temperature": 0}]}', "temperature: expected a number above 0"),
        ('{"name": "e", "arms": [{"name": "a", "model": "base", "temperature": 1}]}', "not sampled"),
        ('{"name": "e", "arms": [{"name": "a", "weight": "2"}]}', r"Expected `float`, got `str` - at `\$.arms\[0\]"),
    ],
)
def test_a_wrong_file_is_refused_by_the_field(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(DataError, match=problem) as caught:
        read_experiment(tmp_path / "e.json")
    assert str(tmp_path / "e.json") in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_experiment(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("name =")
    with pytest.raises(DataError, match="is not TOML"):
        read_experiment(tmp_path / "broken.toml")
