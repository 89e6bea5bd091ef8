"""Any ranker of RankLib, through its command line: needs a `RankLib.jar` and a Java runtime, and brings neither.

RankLib (https://sourceforge.net/p/lemur/wiki/RankLib/) reads and writes files, which here live in a temporary folder:

- Training: `-train FILE -validate FILE -ranker N -metric2t NDCG@10 -save MODEL -silent`, and the method's own options.
  RankLib keeps the model that did best on the validation lists.
- Scoring: `-load MODEL -rank FILE -score SCORES`; each line of the scores is `qid`, the item's number in its list, and
  its score, parted by tabs. Scores are put where those two numbers say.

What RankLib reads is LETOR text with every column on every line (its trees refuse a line that ends early), the lists
numbered from 1, without the empty ones. The columns are the normalised dense ones, so that its networks and linear
rankers see sane scales without its own `-norm`, and last −log(1 + p), p the base position: larger is better, as
AdaRank wants it, whose weak rankers sort by one column from high to low.

Some of RankLib's rankers draw from generators that cannot be seeded, so that two fits may differ. Every call of `rank`
and `score` starts Java, which takes some tenths of a second: large batches pay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.columns import fit_numbers
from seq2slate.data.features import FeatureTransform
from seq2slate.data.letor import write_letor
from seq2slate.data.lists import FloatArray, IntArray, ItemLists, numbers_as_strings, offsets_from_lengths
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import PointwiseEstimator, check_labels
from seq2slate.options import named_in

Doubles: TypeAlias = npt.NDArray[np.float64]


class Method(NamedTuple):
    """One of RankLib's rankers."""

    number: int
    """What `-ranker` takes."""
    options: tuple[str, ...]
    """The options of its own, which may stand among the `arguments`; `-noeq` takes no value."""


_TREE_OPTIONS = ("-tree", "-leaf", "-shrinkage", "-tc", "-mls")

METHODS = {
    "mart": Method(0, (*_TREE_OPTIONS, "-estop")),
    "ranknet": Method(1, ("-epoch", "-layer", "-node", "-lr")),
    "rankboost": Method(2, ("-round", "-tc")),
    "adarank": Method(3, ("-round", "-noeq", "-tolerance", "-max")),
    "coordinate-ascent": Method(4, ("-r", "-i", "-tolerance", "-reg")),
    "lambdamart": Method(6, (*_TREE_OPTIONS, "-estop")),
    "listnet": Method(7, ("-epoch", "-lr")),
    "random-forests": Method(8, ("-bag", "-srate", "-frate", "-rtype", *_TREE_OPTIONS)),
    "linear-regression": Method(9, ("-L2",)),
}
"""RankLib's rankers, as its help text documents them."""
JAR_VARIABLE = "RANKLIB_JAR"
"""The environment variable that says where the jar is."""
TIMEOUT = 6 * 3600.0
"""Seconds that one run of RankLib may take."""

_FILES = frozenset(("-train", "-validate", "-save", "-load", "-rank", "-score", "-test", "-feature"))
_SET_HERE = _FILES | {"-ranker", "-metric2t", "-norm", "-sparse", "-tts", "-tvs", "-kcv"}
_LAST_WORDS = 2000  # characters of RankLib's own output that an error message repeats
_POLL_SECONDS = 0.02
_SECONDS_TO_DIE = 1.0  # after an uncaught exception


@dataclass(frozen=True)
class RankLib:
    """Where RankLib and Java are, and how long they may take."""

    jar: Path
    java: str
    """The Java program."""
    timeout: float = TIMEOUT
    """Seconds until a run is given up."""

    @classmethod
    def find(cls, jar: str | os.PathLike[str] | None = None, *, timeout: float = TIMEOUT) -> RankLib:
        """Take the jar given or named by RANKLIB_JAR, and Java from JAVA_HOME or the PATH."""
        named = os.environ.get(JAR_VARIABLE) if jar is None else os.fspath(jar)
        if not named:
            raise UsageError(
                "RankLib is not part of seq2slate: get RankLib.jar from https://sourceforge.net/p/lemur/wiki/RankLib/ "
                f"and say where it is, as an argument or in the environment variable {JAR_VARIABLE}"
            )
        if not Path(named).is_file():
            raise UsageError(f"there is no {named}: give the path of RankLib.jar, or set {JAR_VARIABLE} to it")
        home = os.environ.get("JAVA_HOME")
        java = shutil.which("java", path=os.path.join(home, "bin")) if home else None
        java = java or shutil.which("java")
        if java is None:
            raise UsageError(
                "RankLib runs on Java, and there is none: install a Java runtime (17, say) or set JAVA_HOME"
            )
        return cls(Path(named).resolve(), java, timeout)

    def run(self, arguments: Sequence[str], folder: Path) -> None:
        """Run RankLib in a folder, which also gets what it prints; anything but success is a UsageError."""
        printed, complaints = folder / "stdout.txt", folder / "stderr.txt"
        with printed.open("wb") as out, complaints.open("wb") as err:
            command = [self.java, "-jar", str(self.jar), *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)
            try:
                failure = self._wait(process, complaints)
            finally:
                process.kill()
                process.wait()
        if failure:
            words = "\n".join(_end_of(path) for path in (printed, complaints)).strip()
            raise UsageError(f"RankLib {failure}: {' '.join(arguments)}\n{words or 'It said nothing.'}")

    def _wait(self, process: subprocess.Popen[bytes], complaints: Path) -> str | None:
        """Return None once the process has ended well, and otherwise what went wrong.

        An exception ends RankLib's main thread, but not its pool of workers: such a process would stay for ever.
        """
        started = time.monotonic()
        dying_since = None
        while process.poll() is None:
            now = time.monotonic()
            if now - started > self.timeout:
                return f"took more than {self.timeout:g} seconds and was stopped; give it a longer timeout"
            if dying_since is None and 'Exception in thread "main"' in _end_of(complaints):
                dying_since = now
            if dying_since is not None and now - dying_since > _SECONDS_TO_DIE:
                return "failed and was stopped"
            time.sleep(_POLL_SECONDS)
        return f"failed with exit code {process.returncode}" if process.returncode else None


@dataclass(eq=False, kw_only=True, repr=False)
class RankLibRanker(PointwiseEstimator):
    """One of RankLib's rankers. RankLib takes no seed, so that two fits may differ."""

    method: str = named_in("seq2slate.baselines.ranklib:METHODS", "lambdamart")
    """Which of RankLib's rankers."""
    metric: str = "NDCG@10"
    """What RankLib maximises on the training lists, by its own name, such as NDCG@10 or MAP."""
    arguments: Sequence[str] = ()
    """Further arguments for RankLib, one word each: the method's own options, such as `-tree 300`."""
    jar: str | None = None
    """Path of RankLib.jar; taken from the environment variable RANKLIB_JAR if not given."""
    timeout: float = TIMEOUT
    """Seconds that one run of RankLib may take."""

    model_: bytes = field(init=False, repr=False)
    """What RankLib saved: its own text."""

    kind = "ranklib"
    reports_validation = False
    local_options = ("jar", "timeout")  # a folder must not say which program is run

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        self._check_arguments()
        labels = _whole_labels(train, "training"), _whole_labels(valid, "validation")
        self.transform_ = fit_numbers(self.kind, train)
        ranklib = RankLib.find(self.jar, timeout=self.timeout)
        with TemporaryDirectory(prefix="ranklib-") as name:
            folder = Path(name)
            _write(train, labels[0], self.transform_, folder / "train.txt")
            _write(valid, labels[1], self.transform_, folder / "validate.txt")
            data = ["-train", "train.txt", "-validate", "validate.txt"]
            goal = [
                "-ranker",
                str(METHODS[self.method].number),
                "-metric2t",
                self.metric,
                "-save",
                "model.txt",
                "-silent",
            ]
            ranklib.run([*data, *goal, *self.arguments], folder)
            model = folder / "model.txt"
            if not model.is_file() or not model.stat().st_size:
                raise UsageError(f"RankLib ended without a model. It said:\n{_end_of(folder / 'stdout.txt')}")
            self.model_ = model.read_bytes()

    def _check_arguments(self) -> None:
        """Refuse options that are set here, and those of other methods, which RankLib would pass over in silence."""
        if self.method not in METHODS:
            raise UsageError(f"RankLib has no ranker {self.method!r}; choose one of {', '.join(METHODS)}")
        if taken := _SET_HERE.intersection(word.lower() for word in self.arguments):
            raise UsageError(f"{', '.join(sorted(taken))} cannot be among the arguments: fit says it to RankLib itself")
        own = METHODS[self.method].options
        foreign = {option for method in METHODS.values() for option in method.options}.difference(own)
        if strange := foreign.intersection(self.arguments):
            raise UsageError(
                f"RankLib's {self.method} has no option {', '.join(sorted(strange))}; its options are {', '.join(own)}"
            )

    def score_items(self, lists: ItemLists) -> Doubles:
        """Return RankLib's score (T,) of each item."""
        self.transform_.apply(lists[:0])  # checks the columns
        if not lists.n_items:
            return np.zeros(0)
        with TemporaryDirectory(prefix="ranklib-") as name:
            folder = Path(name)
            (folder / "model.txt").write_bytes(self.model_)
            offsets = _write(lists, np.zeros(lists.n_items, np.float32), self.transform_, folder / "rank.txt")
            ranklib = RankLib.find(self.jar, timeout=self.timeout)
            ranklib.run(["-load", "model.txt", "-rank", "rank.txt", "-score", "scores.txt"], folder)
            return _read_scores(folder / "scores.txt", offsets)

    def _state(self) -> dict[str, Any]:
        return {"model": np.frombuffer(self.model_, dtype=np.uint8)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.model_ = state["model"].tobytes()


def _whole_labels(lists: ItemLists, name: str) -> FloatArray:
    """Return labels (T,) that RankLib takes as they are."""
    labels = check_labels(lists, name)
    broken = labels != np.floor(labels)
    if broken.any():
        row = int(broken.argmax())
        raise DataError(
            f"the {name} lists, {lists.describe_item(row)}: label {labels[row]:g}, but RankLib cuts labels to whole "
            "numbers: round it, or use mart or lambdamart, which take any labels from 0 up"
        )
    return labels


def _write(lists: ItemLists, labels: FloatArray, transform: FeatureTransform, path: Path) -> IntArray:
    """Write what RankLib reads of the lists, and return the offsets of those that are in the file."""
    nearness = 0 - np.log1p(lists.positions, dtype=np.float32)  # and not −0
    columns = np.column_stack([transform.apply(lists).dense, nearness])
    offsets = offsets_from_lengths(lists.lengths[lists.lengths > 0])
    qids = numbers_as_strings(np.arange(1, len(offsets)))
    write_letor(ItemLists(columns, offsets, labels=labels, list_ids=qids), path)
    return offsets


def _read_scores(path: Path, offsets: IntArray) -> Doubles:
    """Return the scores (T,) of a file that must hold one finite score for every item."""
    try:
        table = np.loadtxt(path, delimiter="\t", ndmin=2, comments=None)
    except (OSError, ValueError) as error:
        raise DataError(f"RankLib's scores cannot be read: {error}") from error
    n_items = int(offsets[-1])
    if table.shape != (n_items, 3):
        raise DataError(
            f"RankLib's scores should be {n_items} lines of list, item and score; "
            f"they are {len(table)} lines of {table.shape[1]} numbers"
        )
    rows, scores = _rows(table[:, 0] - 1, table[:, 1], offsets), table[:, 2]
    if not np.array_equal(np.sort(rows), np.arange(n_items)):
        raise DataError("RankLib's scores do not name every item of every list once")
    if not np.isfinite(scores).all():
        raise DataError("RankLib gives scores that are not finite: its training has diverged, so train it otherwise")
    ordered = np.empty(n_items)
    ordered[rows] = scores
    return ordered


def _rows(lists: Doubles, items: Doubles, offsets: IntArray) -> IntArray:
    """Return the rows of items named by list and number within it, both from 0; -1 where there is no such item."""
    lengths = np.diff(offsets)
    known = (lists >= 0) & (lists < len(lengths)) & (items >= 0)
    owner = np.where(known, lists, 0).astype(np.int64)
    known &= (items < lengths[owner]) & (items % 1 == 0) & (lists % 1 == 0)
    return np.where(known, offsets[owner] + np.where(known, items, 0).astype(np.int64), -1)


def _end_of(path: Path) -> str:
    """Return the last words of a file."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LAST_WORDS))
        return stream.read().decode("utf-8", "replace")
