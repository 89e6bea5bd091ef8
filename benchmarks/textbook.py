"""A textbook pointer network in plain PyTorch: the reference for speed.

nn.LSTM, an nn.LSTMCell loop, torch.tanh attention with W_enc e computed once outside of it, and autograd through it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TextbookPointerNetwork(nn.Module):
    """The network of the paper, in plain PyTorch."""

    def __init__(self, n_features: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(n_features, hidden, batch_first=True)
        self.decoder = nn.LSTMCell(n_features, hidden)
        self.go = nn.Parameter(torch.empty(n_features))
        self.w_enc = nn.Linear(hidden, hidden, bias=False)
        self.w_dec = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Parameter(torch.empty(hidden))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(
        self, items: Tensor, mask: Tensor, k: int | None = None, *, sample: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return slates (B, K) and the scores (B, K, N) of every step, -inf for items that are placed or padding."""
        n_lists, n_items, _ = items.shape
        memory, (h, c) = self.encoder(items)
        h, c = h[0], c[0]
        keys = self.w_enc(memory)
        left = mask
        inputs = self.go.expand(n_lists, -1)
        every = torch.arange(n_lists)
        slates, scores = [], []
        for _ in range(n_items if k is None else min(k, n_items)):
            h, c = self.decoder(inputs, (h, c))
            score = torch.tanh(keys + self.w_dec(h).unsqueeze(1)) @ self.v
            score = score.masked_fill(~left, -torch.inf)
            choice = torch.multinomial(score.softmax(1), 1).squeeze(1) if sample else score.argmax(1)
            slates.append(choice)
            scores.append(score)
            left = left.scatter(1, choice.unsqueeze(1), False)
            inputs = items[every, choice]
        return torch.stack(slates, 1), torch.stack(scores, 1)


def sampling_loss(
    network: TextbookPointerNetwork, items: Tensor, mask: Tensor, labels: Tensor, baseline: float
) -> Tensor:
    """Return the surrogate loss of the paper's sampling policy with per-step cross-entropy."""
    slates, scores = network(items, mask, sample=True)
    log_p = scores.log_softmax(2)
    losses, left = [], labels
    for step in range(slates.shape[1]):
        target = left / left.sum(1, keepdim=True).clamp(min=1)
        losses.append(-(target * log_p[:, step].masked_fill(target == 0, 0)).sum(1))
        left = left.scatter(1, slates[:, step : step + 1], 0)
    total = torch.stack(losses, 1).sum(1)
    chosen = log_p.gather(2, slates.unsqueeze(2)).squeeze(2).sum(1)
    surrogate: Tensor = (total + (total.detach() - baseline) * chosen).mean()
    return surrogate
