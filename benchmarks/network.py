"""The network against the textbook's: training steps and greedy decoding, one thread, F=136, D=128, batches of 128.

Also: what the matrix products alone would take, what sequential decoding costs over one-step decoding, how the cost
grows with the length of the lists, and peak memory.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.textbook import TextbookPointerNetwork, sampling_loss
from seq2slate.config import NetworkConfig, TrainingConfig
from seq2slate.model.network import InputSizes, NetworkInputs, SlateNetwork
from seq2slate.training.objectives import Objective

N_LISTS, N_FEATURES, HIDDEN, POSITIVES = 128, 136, 128, 0.15
Rows = list[dict[str, float | str]]


def training() -> Rows:
    """Training steps (sample, loss, gradient, Adam) over full permutations: lists a second, and the ratio."""
    rows: Rows = []
    for n_items, bar in ((10, 1.2), (25, 1.5), (100, 3.0)):
        best = race(
            {
                "textbook": textbook_training(n_items),
                "seq2slate": training_step(n_items),
                "products": training_products(n_items),
            },
            n_items,
        )
        rows.append(
            {
                "items": n_items,
                "textbook, lists/s": N_LISTS / best["textbook"],
                "seq2slate, lists/s": N_LISTS / best["seq2slate"],
                "ratio": best["textbook"] / best["seq2slate"],
                "bar": bar,
                "share of matrix products": best["products"] / best["seq2slate"],
            }
        )
    return rows


def decoding() -> Rows:
    """Greedy decoding of a batch, without gradients: lists a second, and the ratio."""
    rows: Rows = []
    for n_items, k, bar in ((10, None, 1.5), (100, None, 4.0), (100, 10, 1.8)):
        best = race(
            {
                "textbook": textbook_decoding(n_items, k),
                "seq2slate": greedy_decoding(n_items, k),
                "products": decoding_products(n_items, k),
            },
            n_items,
        )
        rows.append(
            {
                "items": n_items,
                "slots": "all" if k is None else str(k),
                "textbook, lists/s": N_LISTS / best["textbook"],
                "seq2slate, lists/s": N_LISTS / best["seq2slate"],
                "ratio": best["textbook"] / best["seq2slate"],
                "bar": bar,
                "share of matrix products": best["products"] / best["seq2slate"],
            }
        )
    return rows


def sequential_cost() -> Rows:
    """Return what placing items one by one costs over sorting by the first step, at n=10."""
    best = race(
        {
            "training, sequential": training_step(10),
            "training, one-step": training_step(10, "one-step"),
            "inference, sequential": greedy_decoding(10, None),
            "inference, one-step": greedy_decoding(10, None, "one-step"),
        },
        10,
    )
    return [
        {"what": what, "ratio": best[f"{what}, sequential"] / best[f"{what}, one-step"], "bar": bar, "paper": paper}
        for what, bar, paper in (("training", 2.5, 4.0), ("inference", 2.0, 3.0))
    ]


def growth() -> Rows:
    """How the cost of a list grows with its length, and the peak memory of a training step."""
    rows: Rows = []
    for n_items in (10, 25, 50, 100, 200):
        best = race({"train": training_step(n_items), "greedy": greedy_decoding(n_items, None)}, n_items)
        rows.append(
            {
                "items": n_items,
                "training, µs a list": best["train"] / N_LISTS * 1e6,
                "greedy, µs a list": best["greedy"] / N_LISTS * 1e6,
                "training, peak MB": peak_memory("seq2slate", n_items),
                "textbook training, peak MB": peak_memory("textbook", n_items),
            }
        )
    return rows


def race(ways: dict[str, Callable[[], object]], n_items: int) -> dict[str, float]:
    """Return the best seconds of each way, measured in turns so that a busy moment hits all of them."""
    torch.set_num_threads(1)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(max(4, 400 // n_items)):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


# What is raced


def random_batch(n_items: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_items)
    items = torch.randn(N_LISTS, n_items, N_FEATURES, generator=generator)
    labels = (torch.rand(N_LISTS, n_items, generator=generator) < POSITIVES).float()
    return items, torch.ones(N_LISTS, n_items, dtype=torch.bool), labels


def network_inputs(items: Tensor, mask: Tensor) -> NetworkInputs:
    return NetworkInputs(items.transpose(0, 1).contiguous(), {}, torch.zeros(N_LISTS, 0), {}, mask)


def new_network(decoder: str) -> SlateNetwork:
    network = SlateNetwork(
        InputSizes(N_FEATURES, {}, 0, {}), NetworkConfig(hidden=HIDDEN, dropout=0.0, decoder=decoder)
    )
    network.reset_parameters(torch.Generator().manual_seed(0))
    return network


def textbook_training(n_items: int) -> Callable[[], None]:
    items, mask, labels = random_batch(n_items)
    network = TextbookPointerNetwork(N_FEATURES, HIDDEN)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-4)

    def step() -> None:
        optimiser.zero_grad()
        sampling_loss(network, items, mask, labels, 0.0).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def training_step(n_items: int, decoder: str = "sequential") -> Callable[[], None]:
    items, mask, labels = random_batch(n_items)
    inputs, network, objective = network_inputs(items, mask), new_network(decoder), Objective(TrainingConfig())
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        surrogate, _ = objective(network, inputs, labels, generator)
        optimiser.zero_grad()
        surrogate.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def textbook_decoding(n_items: int, k: int | None) -> Callable[[], object]:
    items, mask, _ = random_batch(n_items)
    network = TextbookPointerNetwork(N_FEATURES, HIDDEN).eval()
    return torch.no_grad()(lambda: network(items, mask, k))


def greedy_decoding(n_items: int, k: int | None, decoder: str = "sequential") -> Callable[[], object]:
    items, mask, _ = random_batch(n_items)
    inputs, network = network_inputs(items, mask), new_network(decoder).eval()
    return torch.no_grad()(lambda: network.decoder.decode(network.encode(inputs), k))


# The matrix products alone, in the sizes in which they come


def decoding_products(n_items: int, k: int | None) -> Callable[[], None]:
    x, h, outputs = (
        torch.randn(N_LISTS, N_FEATURES),
        torch.randn(N_LISTS, HIDDEN),
        torch.randn(n_items * N_LISTS, HIDDEN),
    )
    from_input, from_hidden, square = (
        torch.randn(N_FEATURES, 4 * HIDDEN),
        torch.randn(HIDDEN, 4 * HIDDEN),
        torch.randn(HIDDEN, HIDDEN),
    )
    gates, query = torch.empty(N_LISTS, 4 * HIDDEN), torch.empty(N_LISTS, HIDDEN)

    def products() -> None:
        for step in range(n_items + (k or n_items)):
            torch.mm(x, from_input, out=gates).addmm_(h, from_hidden)
            if step >= n_items:
                torch.mm(h, square, out=query)
        torch.mm(outputs, square)

    return products


def training_products(n_items: int) -> Callable[[], None]:
    """Return a training step's products: a step that the lists need is taken twice forward and once backward."""
    forward = decoding_products(n_items, None)
    x, h, gates = torch.randn(N_LISTS, N_FEATURES), torch.randn(N_LISTS, HIDDEN), torch.randn(N_LISTS, 4 * HIDDEN)
    weight_hidden, square = torch.randn(4 * HIDDEN, HIDDEN), torch.randn(HIDDEN, HIDDEN)
    from_input, from_hidden = torch.randn(N_FEATURES, 4 * HIDDEN), torch.randn(HIDDEN, 4 * HIDDEN)
    outputs, dhidden = torch.randn(n_items * N_LISTS, HIDDEN), torch.empty(N_LISTS, HIDDEN)

    def products() -> None:
        forward()
        for _ in range(n_items):  # the slates are scored again
            torch.mm(x, from_input, out=gates).addmm_(h, from_hidden)
        for _ in range(2 * n_items):  # backward, through decoder and encoder
            torch.mm(gates, weight_hidden, out=dhidden)
            torch.mm(gates.t(), h)
            torch.mm(gates.t(), x)
        for _ in range(3):  # queries again, and the gradients of keys and queries
            torch.mm(outputs, square)
        for _ in range(2):
            torch.mm(outputs.t(), outputs)

    return products


# Memory


def peak_memory(which: str, n_items: int) -> float:
    """Return by how many MB a process of its own grows at most while it takes a training step."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return float(pool.apply(_grown, (which, n_items)))


def _grown(which: str, n_items: int) -> float:
    torch.set_num_threads(1)
    new_step = textbook_training if which == "textbook" else training_step
    new_step(2)()  # loads what PyTorch loads late
    step = new_step(n_items)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak_kilobytes()
    step()
    return (peak_kilobytes() - before) / 1024


def peak_kilobytes() -> int:
    """Return the most memory that this process has had at once (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
