"""Philox4x32-10: random bits as a pure function of a key and a counter.

No state and no order of calls: the bits of a draw depend on the numbers given here alone, which is what makes draws
independent of the batch. 32-bit words are held in int64, where the products wrap without harm: their bits are the same.
"""

from __future__ import annotations

import torch

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF

Words4 = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words4, key: tuple[torch.Tensor, torch.Tensor]) -> Words4:
    """Four 32-bit words for each counter, values in [0, 2^32), as int64 tensors of the counter's shape.

    The four words of `counter` have one shape, the two of `key` another that broadcasts with it.
    Words 0 and 2, and words 1 and 3, travel as pairs `[2, ...]`: they go through the same steps.
    """
    even, odd = torch.stack((counter[0], counter[2])), torch.stack((counter[1], counter[3]))
    pair = (2,) + (1,) * counter[0].dim()
    multipliers = torch.tensor(_MULTIPLIERS, device=even.device).view(pair)
    weyl = torch.tensor(_WEYL, device=even.device).view(pair)
    keys = torch.stack(key)
    for turn in range(_ROUNDS):
        products = (even * multipliers).flip(0)  # of words 2 and 0
        round_keys = (keys + weyl * turn) & _WORD
        even = (products >> 32).bitwise_and_(_WORD).bitwise_xor_(odd).bitwise_xor_(round_keys)
        odd = products.bitwise_and_(_WORD)
    return even[0], odd[0], even[1], odd[1]


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, tag: int, first: torch.Tensor, count: int
) -> torch.Tensor:
    """Gumbel(0, 1) noise, float64 `[rows, count]`, for `count` indices from `first` (a multiple of 4) on.

    The noise of an index depends on its row's seed (64 bits) and position, on `tag` and on the index, on nothing else.
    It is finite: the uniform below it has 32 bits and lies strictly inside (0, 1). `seeds`, `positions` and `first` are
    int64 `[rows]`.
    """
    blocks = (first >> 2)[:, None] + torch.arange(count // 4, device=first.device)  # [rows, count / 4]
    zeros = torch.zeros_like(blocks)
    words = philox4x32(
        (blocks, positions[:, None] + zeros, zeros + tag, zeros),
        ((seeds & _WORD)[:, None], (seeds >> 32 & _WORD)[:, None]),
    )
    bits = torch.stack(words, dim=-1).flatten(1)  # [rows, count]: word i of a block is index 4 * block + i
    uniform = (bits.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))
