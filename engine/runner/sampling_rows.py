"""What compiled samplers are told of a step: a record of settings for each row, and one for each edit of a logit."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.token_edits import TokenEdits

_LEAST_TEMPERATURE = 1e-30  # what float32 can still divide by
_MASK_64, _MOST_TOP_K = 2**64 - 1, 2**31 - 1
NO_MASK = -1

ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("top_p", np.float64),
        ("position", np.uint32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("log_min_p", np.float32),
        ("wants_logprob", np.int32),
        ("mask_row", np.int32),
    ]
)
EDIT = np.dtype([("token", np.int32), ("factor", np.float32), ("subtracted", np.float32), ("before", np.float32)])


def settings_of(items: Items[ScheduledSequence], first_mask: int = NO_MASK) -> Any:
    """The rows' settings as the kernel reads them; a draw's position is that of the token it yields.

    `first_mask` says in which row of the bitmasks that of the first row lies, before those of the others.
    """
    params = [item.sequence.sampling_params for item in items]
    rows = np.zeros(len(items), ROW)
    rows["seed"] = [item.sequence.seed & _MASK_64 for item in items]
    rows["position"] = [item.start + item.num_tokens for item in items]
    rows["top_p"] = [setting.top_p for setting in params]
    rows["top_k"] = [min(setting.top_k, _MOST_TOP_K) for setting in params]
    rows["temperature"] = [
        0.0 if setting.is_greedy else max(setting.temperature, _LEAST_TEMPERATURE) for setting in params
    ]
    with np.errstate(divide="ignore"):
        rows["log_min_p"] = np.log(np.asarray([setting.min_p for setting in params], np.float32))
    rows["wants_logprob"] = [setting.logprobs is not None for setting in params]
    rows["mask_row"] = NO_MASK if first_mask == NO_MASK else np.arange(first_mask, first_mask + len(items))
    return rows


def edits_of(items: Items[ScheduledSequence], vocab_size: int) -> tuple[Any, Any]:
    """Where each row's penalties and additions start, int32 `[2 * R + 1]`, and all of them; two None without any."""
    collected = TokenEdits(items, vocab_size)
    places, factors, subtracted = collected.penalties
    additions = collected.additions
    if not len(places) and not additions:
        return None, None
    added = np.fromiter(additions.keys(), np.int64, len(additions))
    kinds = np.repeat([0, 1], [len(places), len(added)])
    places = np.concatenate((places, added))
    runs = places // vocab_size * 2 + kinds  # of row r: 2r for its penalties, then 2r + 1
    order = np.argsort(runs, kind="stable")
    edits = np.zeros(len(places), EDIT)
    edits["token"] = (places % vocab_size)[order]
    edits["factor"] = np.concatenate((factors, np.ones(len(added), np.float32)))[order]
    edits["subtracted"] = np.concatenate((subtracted, -np.fromiter(additions.values(), np.float32)))[order]
    return np.searchsorted(runs[order], np.arange(2 * len(items) + 1)).astype(np.int32), edits
