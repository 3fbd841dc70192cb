"""Draws the next token of every row at once, whatever settings the rows have.

Every filter is a threshold on the scaled logits: equal logits fall on the same side, and no row is sorted as a whole.
The draw is Gumbel-max in two stages, since noise for a whole vocabulary costs as much as a small model's step. The
largest of a group of perturbed logits is itself Gumbel, around the log of the group's summed weights; so one noise a
group picks the group, one noise a member picks the token. That is exactly the softmax, with some 450 random numbers a
row instead of 50,000. The noise is a function of (seed, position, index): given equal logits, neither the slot nor the
batch has a say.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from engine.core.runner import SampledToken, TokenLogprobs
from engine.core.scheduler_output import ScheduledSequence
from engine.runner.device import to_device
from engine.runner.logit_edits import LogitEdits, mask_disallowed
from engine.runner.philox import gumbel_noise

_GROUP_SIZE, _BLOCK_SIZE = 256, 32  # tokens: of a noise group, of a block in which large values are looked for
_GROUP_NOISE, _TOKEN_NOISE = 1, 0  # tags that keep the two noises apart
_NUCLEUS_WIDTH, _NUCLEUS_GROWTH = 64, 8  # tokens sorted at first for top_p, and how many more where that falls short
_LEAST_EXPONENT = -80.0  # far below any chance of a draw, and above what a CPU takes ten times as long to exponentiate
_LEAST_TEMPERATURE = 1e-30  # what float32 can still divide by
_NOTHING_ALLOWED = -1
_MASK_64 = 2**64 - 1


@dataclass(slots=True)
class PendingTokens:
    """Tokens of a step on their way to the host: `token_ids` int64 `[R]`, -1 where nothing was allowed.

    `logprob_rows` lists the rows that asked for log probabilities, with how many alternatives each; the tensors below
    have one row for each of them.
    """

    token_ids: torch.Tensor
    logprob_rows: list[tuple[int, int]]
    chosen_logprobs: torch.Tensor | None = None  # [n]
    top_logprobs: torch.Tensor | None = None  # [n, most alternatives]
    top_ids: torch.Tensor | None = None
    done: torch.cuda.Event | None = None


class Sampler:
    """Samples rows of logits; keeps per-sequence state in `sequence.sampler_state`."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None) -> PendingTokens:
        """Draw a token for each row of `logits`, float32 `[R, V]`, which is overwritten.

        `items` are the rows' sequences, `bitmask` is int32 `[R, ceil(V / 32)]` (bit 1 = allowed) or None.
        """
        params = [item.sequence.sampling_params for item in items]
        logprob_rows = [(row, setting.logprobs) for row, setting in enumerate(params) if setting.logprobs is not None]
        raw_logprobs = _log_softmax_rows(logits, [row for row, _ in logprob_rows]) if logprob_rows else None
        LogitEdits(items, self._vocab_size).apply(logits)
        if bitmask is not None:
            mask_disallowed(logits, bitmask)
        best, token_ids = logits.max(dim=-1)
        drawn = [row for row, setting in enumerate(params) if not setting.is_greedy]
        if drawn and len(drawn) == len(items):
            token_ids = draw(logits, best, DrawSettings.of(items, logits.device))
        elif drawn:
            rows = torch.tensor(drawn, device=logits.device)
            settings = DrawSettings.of([items[row] for row in drawn], logits.device)
            token_ids[rows] = draw(logits.index_select(0, rows), best.index_select(0, rows), settings)
        pending = PendingTokens(token_ids.masked_fill_(~best.isfinite(), _NOTHING_ALLOWED), logprob_rows)
        if raw_logprobs is not None:
            _add_logprobs(pending, raw_logprobs)
        return pending


def to_host(pending: PendingTokens) -> PendingTokens:
    """Start the copy of `pending` to the host; `tokens_of` waits for it."""
    if pending.token_ids.device.type == "cpu":
        return pending
    for name in ("token_ids", "chosen_logprobs", "top_logprobs", "top_ids"):
        tensor = getattr(pending, name)
        if tensor is not None:
            setattr(pending, name, tensor.to("cpu", non_blocking=True))
    pending.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    pending.done.record()
    return pending


def tokens_of(pending: PendingTokens) -> list[SampledToken]:
    """Wait for the tokens and hand them out, in row order."""
    if pending.done is not None:
        pending.done.synchronize()
    tokens = [SampledToken(None if token == _NOTHING_ALLOWED else token) for token in pending.token_ids.tolist()]
    if pending.chosen_logprobs is None or pending.top_logprobs is None or pending.top_ids is None:
        return tokens
    lists = (pending.chosen_logprobs.tolist(), pending.top_logprobs.tolist(), pending.top_ids.tolist())
    for (row, count), logprob, values, ids in zip(pending.logprob_rows, *lists, strict=True):
        if tokens[row].token_id is not None:
            alternatives = list(zip(ids[:count], values[:count], strict=True))
            tokens[row] = SampledToken(tokens[row].token_id, TokenLogprobs(logprob, alternatives))
    return tokens


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Settings of the rows that are drawn, each `[S]`; None where no row filters that way."""

    temperature: torch.Tensor
    top_k: torch.Tensor | None  # 0 where a row has none
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    seeds: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(cls, items: Items[ScheduledSequence], device: torch.device) -> DrawSettings:
        """From the rows' sequences; a draw's position is that of the token it yields."""
        params = [item.sequence.sampling_params for item in items]

        def column(values: list[Any], dtype: Any) -> torch.Tensor:
            return to_device(np.asarray(values, dtype), device)

        def filters(name: str, off: float, dtype: Any) -> torch.Tensor | None:
            values = [getattr(setting, name) for setting in params]
            return column(values, dtype) if any(value != off for value in values) else None

        seeds = np.asarray([item.sequence.seed & _MASK_64 for item in items], np.uint64).view(np.int64)
        return cls(
            temperature=column([max(setting.temperature, _LEAST_TEMPERATURE) for setting in params], np.float32),
            top_k=filters("top_k", 0, np.int64),
            top_p=filters("top_p", 1.0, np.float64),
            min_p=filters("min_p", 0.0, np.float32),
            seeds=to_device(seeds, device),
            positions=column([item.start + item.num_tokens for item in items], np.int64),
        )


def draw(logits: torch.Tensor, best: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """Token IDs int64 `[S]` for `logits` `[S, V]`, overwritten, whose row maxima are `best` `[S]`.

    Rows without a finite maximum give an arbitrary token and leave the others alone.
    """
    scaled = logits.sub_(best.unsqueeze(1)).div_(settings.temperature.unsqueeze(1))  # row maxima 0
    missing = -scaled.shape[1] % (4 * _GROUP_SIZE)
    if missing:
        scaled = pad(scaled, (0, missing), value=-torch.inf)  # whole groups from here on
    weights = scaled.clamp(min=_LEAST_EXPONENT).exp()
    threshold = _threshold(scaled, weights, settings)
    if threshold is not None:
        weights.masked_fill_(scaled < threshold.unsqueeze(1), 0.0)
    return _gumbel_argmax(scaled, weights, settings.seeds, settings.positions)


def _gumbel_argmax(
    scaled: torch.Tensor, weights: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """A token of each row with a chance proportional to `weights`, which are exp(`scaled`) or 0, `[S, V]`."""
    rows = torch.arange(scaled.shape[0], device=scaled.device)
    grouped = weights.view(len(rows), -1, _GROUP_SIZE)  # [S, G, 256]
    sums = grouped.sum(dim=-1).double()  # [S, G]
    noise = gumbel_noise(seeds, positions, _GROUP_NOISE, torch.zeros_like(positions), sums.shape[1])
    group = (sums.log() + noise).argmax(dim=-1)  # [S]
    first = group * _GROUP_SIZE
    members = scaled.view(grouped.shape)[rows, group].double()  # [S, 256]
    members.masked_fill_(grouped[rows, group] == 0, -torch.inf)
    noise = gumbel_noise(seeds, positions, _TOKEN_NOISE, first, _GROUP_SIZE)
    return first + (members + noise).argmax(dim=-1)


def _threshold(scaled: torch.Tensor, weights: torch.Tensor, settings: DrawSettings) -> torch.Tensor | None:
    """The least scaled logit that survives top_k, then top_p, then min_p, `[S]`; None when nothing filters."""
    bounds = []
    if settings.top_k is not None:
        bounds.append(_top_k_threshold(scaled, settings.top_k))
    if settings.top_p is not None:
        if bounds:
            weights = weights.masked_fill(scaled < bounds[0].unsqueeze(1), 0.0)
        bounds.append(_top_p_threshold(scaled, _row_sums(weights), settings.top_p))
    if settings.min_p is not None:
        bounds.append(settings.min_p.log())
    return torch.stack(bounds).amax(dim=0) if bounds else None


def _top_k_threshold(scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The k-th largest value of each row, -inf where a row has no k; equal values survive together."""
    limits = top_k.where(top_k < scaled.shape[1], 0)
    values = _largest(scaled, max(1, int(limits.max())))  # [S, largest k]
    kth = values.gather(1, limits.clamp(min=1).unsqueeze(1) - 1).squeeze(1)
    return kth.masked_fill(limits == 0, -torch.inf)


def _top_p_threshold(scaled: torch.Tensor, total: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The least value of the smallest set of large ones that holds `top_p` of the `total` weight `[S]` of each row."""
    whole = top_p >= 1
    mass = (total * top_p).masked_fill_(whole, 0.0)
    return _nucleus_bound(scaled, mass, _NUCLEUS_WIDTH).masked_fill_(whole, -torch.inf)


def _nucleus_bound(scaled: torch.Tensor, mass: torch.Tensor, width: int) -> torch.Tensor:
    """The value at which the sorted weights of each row add up to `mass`, looking at `width` values first."""
    width = min(width, scaled.shape[1])
    values = _largest(scaled, width)  # [S, width]
    weights = values.double().exp()
    before = weights.cumsum(dim=-1) - weights
    kept = (before < mass.unsqueeze(1)).sum(dim=-1).clamp(min=1)  # [S]
    bound = values.gather(1, kept.unsqueeze(1) - 1).squeeze(1)
    if width < scaled.shape[1]:
        (short,) = (kept == width).nonzero(as_tuple=True)
        if short.numel():
            bound[short] = _nucleus_bound(scaled[short], mass[short], width * _NUCLEUS_GROWTH)
    return bound


def _largest(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` largest values of each row, descending, `[S, count]`.

    They lie in the `count` blocks with the largest maxima, which is less to look through than the vocabulary.
    """
    blocks = scaled.view(scaled.shape[0], -1, _BLOCK_SIZE)  # [S, V / 32, 32]
    if 2 * count > blocks.shape[1]:
        return scaled.topk(count, dim=-1).values
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices.unsqueeze(-1)  # [S, count, 1]
    return blocks.gather(1, chosen.expand(-1, -1, _BLOCK_SIZE)).flatten(1).topk(count, dim=-1).values


def _row_sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums of rows `[S, V]` in float64, added in an order that does not depend on how many rows there are."""
    return weights.view(weights.shape[0], -1, _GROUP_SIZE).sum(dim=-1).double().sum(dim=-1)


def _log_softmax_rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return logits[rows].log_softmax(dim=-1)  # [n, V]


def _add_logprobs(pending: PendingTokens, raw_logprobs: torch.Tensor) -> None:
    """Fill in the log probabilities of the chosen tokens and of the most likely ones."""
    rows = [row for row, _ in pending.logprob_rows]
    chosen = pending.token_ids[rows].clamp(min=0).unsqueeze(1)
    pending.chosen_logprobs = raw_logprobs.gather(1, chosen).squeeze(1)
    most = max(count for _, count in pending.logprob_rows)
    pending.top_logprobs, pending.top_ids = raw_logprobs.topk(most, dim=-1)
