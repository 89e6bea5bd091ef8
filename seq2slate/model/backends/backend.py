"""Backends: the programs that run a trained network without gradients, and the one function that chooses among them.

What a network computes is said in `model.network`. A backend says of every network whether it can run it (`why_not`),
and turns lists into slates and log-probabilities (`slates`, or `slate` for one list of raw columns).
`tests/test_backends.py` compares all of them, on every option of the network, with a reference in float64.

- `torch`: PyTorch alone; every network, on any device, in any precision.
- `native`: the same with inner loops in C, and in one C loop an encoder or a decoder that is a single LSTM layer.
- `single-list`: one call to C from the raw columns of a list to its slate, for one request after another.
- `onnx`: ONNX Runtime, from a file that needs no PyTorch.

To add one, write a subclass of `NetworkBackend` in a file of its own and give it a line in `BACKENDS`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.errors import UsageError
from seq2slate.model.backends.kernels import KERNELS, only_kernels
from seq2slate.model.decoders import choice_log_probabilities, uniform_draws
from seq2slate.model.network import InputLists, NetworkInputs, SlateNetwork
from seq2slate.model.slate_model import SlateModel

Placed: TypeAlias = tuple[IntArray, FloatArray]
"""Slates, as positions in the lists, and the log-probability of each choice."""
Categorical: TypeAlias = Mapping[str, Sequence[str | None]]
"""The categorical columns of one list: n values each."""
Context: TypeAlias = Mapping[str, str | float | None]
"""The context columns of one list: one value each."""

BACKENDS = {
    "single-list": "seq2slate.model.backends.single_list:SingleListBackend",
    "native": "seq2slate.model.backends.backend:NativeBackend",
    "torch": "seq2slate.model.backends.backend:TorchBackend",
    "onnx": "seq2slate.model.backends.onnx_export:OnnxBackend",
}
"""Where each backend is, by name, the fastest for one list at a time first."""


Rows: TypeAlias = npt.NDArray[np.floating] | Sequence[Sequence[float]]
"""The numeric columns of one list: n rows."""


class RawList(NamedTuple):
    """One list as a request has it."""

    features: Rows
    """(n, F) raw, in base order; NaN for a missing value."""
    categorical: Categorical | None
    context: Context | None


class NetworkBackend:
    """A trained model that one of the programs runs. It is a Ranker, and several threads may use it at once.

    The weights are taken as they are now: what happens to the model later changes nothing here. A subclass has
    `why_not` and `place`, and `place_one` if it can do better for a single list.
    """

    samples: ClassVar[bool] = True
    """Whether slates can be sampled."""
    quick_items: ClassVar[int] = 0
    """The slate of so many items takes hardly longer than handing it to another thread."""

    def __init__(self, model: SlateModel) -> None:
        """Take a model whose network `why_not` has nothing against."""
        self.transform = model.transform
        self.network = copy.deepcopy(model.network).eval()

    # What a backend says

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        """Return why this backend cannot run a network; None if it can."""
        raise NotImplementedError

    def place(self, batch: Batch, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:
        """Place the first items of every list of a batch.

        Args:
            batch: Lists in base order.
            steps: K, at most the length of the longest list.
            draws: (B, K) uniform in [0, 1), to sample items; None takes the best.
            sharpness: Log-probabilities, and samples, are those of the softmax of score · sharpness.

        Returns:
            Slates and log-probabilities (B, K); -1 and 0 where a list has no more items.
        """
        raise NotImplementedError

    def place_one(self, one: RawList, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:
        """Place the first items of one list: draws, slate and log-probabilities are (K,)."""
        columns = {name: np.array(values, dtype=object) for name, values in (one.categorical or {}).items()}
        context = {name: [value] for name, value in (one.context or {}).items()}
        names, rows = self.transform.dense.names, self.transform.as_rows(one.features)
        lists = ItemLists(rows, [0, len(rows)], feature_names=names, categorical=columns, context=context)
        slates, logs = self.place(lists.batch(), steps, None if draws is None else draws[None], sharpness)
        return slates[0], logs[0]

    # What follows

    def slates(
        self,
        batch: Batch,
        k: int | None = None,
        *,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Placed:
        """Return the slates of a batch and the log-probability of each choice.

        Args:
            batch: Lists in base order.
            k: Slots of a slate; all items if None.
            generator: Samples the slates; None takes the best item at each step.
            temperature: Of the samples.

        Returns:
            Slates (B, K), as positions in the lists, and log-probabilities (B, K); -1 and 0 where a list has no more
            items. The log-probabilities of sampled slates are the log-propensities, at the temperature.
        """
        steps, draws = self._drawn(len(batch), batch.n_slots, k, generator, temperature)
        return self.place(batch, steps, draws, 1.0 if draws is None else 1 / temperature)

    def slate(
        self,
        features: Rows,
        k: int | None = None,
        *,
        ids: Sequence[str] | None = None,
        categorical: Categorical | None = None,
        context: Context | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Placed:
        """Return the slate (K,) of one list and the log-probability of each choice, as `slates` does.

        features (n, F) are raw, in base order; categorical columns have n values each, context columns one. The ids of
        the items are read by a model with a categorical column `item_id`, if that is not given.
        """
        one = RawList(features, self._with_ids(categorical, ids), context)
        steps, draws = self._drawn(1, len(features), k, generator, temperature)
        return self.place_one(one, steps, *((None, 1.0) if draws is None else (draws[0], 1 / temperature)))

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the best slates (B, K) of a batch."""
        return self.slates(batch, k)[0]

    @torch.no_grad()
    def step_probabilities(
        self,
        features: Rows,
        slate: Sequence[int],
        *,
        ids: Sequence[str] | None = None,
        categorical: Categorical | None = None,
        context: Context | None = None,
        temperature: float = 1.0,
    ) -> FloatArray:
        """Return (K, n) the probability of every item at every step of a slate, given the items placed before."""
        one = RawList(features, self._with_ids(categorical, ids), context)
        encoded = self.network.encode(self._inputs_of_one(one))
        scores = self.network.decoder.score(encoded, torch.tensor([list(slate)], device=encoded.mask.device))
        probabilities: FloatArray = (scores[0] / temperature).softmax(1).cpu().numpy()
        return probabilities

    def _with_ids(self, categorical: Categorical | None, ids: Sequence[str] | None) -> Categorical | None:
        if ids is None or not self.transform.categorical:
            return categorical
        return self.transform.with_item_ids(categorical or {}, ids)

    def _drawn(
        self, n_lists: int, longest: int, k: int | None, generator: torch.Generator | None, temperature: float
    ) -> tuple[int, FloatArray | None]:
        """Return the number of steps, and with a generator the draws (B, K): the same in every backend."""
        if not temperature > 0 or (k is not None and k < 1):
            raise UsageError(f"k must be at least 1 and temperature must be above 0, got {k=}, {temperature=}")
        steps = longest if k is None else min(k, longest)
        if generator is None:
            return steps, None
        if not self.samples:
            raise UsageError(f"{type(self).__name__} takes the best items only: leave out the generator")
        return steps, uniform_draws(n_lists, steps, generator).cpu().numpy()

    def _inputs_of_one(self, one: RawList) -> NetworkInputs:
        encoded = self.transform.apply_arrays(*one)
        return InputLists(encoded, np.array([len(encoded.dense)])).batch().to(self.network.v.device)


class TorchBackend(NetworkBackend):
    """PyTorch alone."""

    kernels: ClassVar[str] = "torch"
    """The kernels that it runs."""

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        """PyTorch runs every network."""
        return None

    def place(self, batch: Batch, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:  # noqa: D102
        inputs = InputLists.of(batch.lists, self.transform).batch().to(self.network.v.device)
        return self._decoded(inputs, steps, draws, sharpness)

    def place_one(self, one: RawList, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:  # noqa: D102
        inputs = self._inputs_of_one(one)
        slates, logs = self._decoded(inputs, steps, None if draws is None else draws[None], sharpness)
        return slates[0], logs[0]

    @torch.no_grad()
    def _decoded(self, inputs: NetworkInputs, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:
        with only_kernels(self.kernels):
            encoded = self.network.encode(inputs)
            numbers = None if draws is None else torch.from_numpy(draws).to(encoded.keys.factors)
            decoded = self.network.decoder.place(encoded, steps, numbers, sharpness, None)
        logs = choice_log_probabilities(decoded.scores * sharpness, decoded.slates)
        return decoded.slates.cpu().numpy(), logs.cpu().numpy()


class NativeBackend(TorchBackend):
    """PyTorch with inner loops in C, for float32 on the CPU."""

    kernels = "native"

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        """Return why the C kernels cannot run a network; None if they can."""
        if cls.kernels not in KERNELS:
            return "there are no C kernels: there is no working C compiler, or SEQ2SLATE_NATIVE is 0"
        return KERNELS[cls.kernels].why_not(network.v.device, network.v.dtype)


def backend_class(name: str) -> type[NetworkBackend]:
    """Return the backend of that name."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    found: type[NetworkBackend] = resolve_name(BACKENDS[name])
    return found


def choose_backend(model: SlateModel) -> NetworkBackend:
    """Return the fastest backend that can run a model and sample from it, for one list at a time.

    >>> from seq2slate.config import NetworkConfig
    >>> features = np.random.default_rng(0).normal(size=(9, 4))
    >>> backend = choose_backend(SlateModel.create(ItemLists(features, [0, 9]), NetworkConfig(hidden=8)))
    >>> slate, log_probabilities = backend.slate(features[:5], k=3)
    >>> slate.shape, bool((log_probabilities < 0).all())
    ((3,), True)
    """
    classes = map(backend_class, BACKENDS)
    return next(backend for backend in classes if backend.samples and backend.why_not(model.network) is None)(model)
