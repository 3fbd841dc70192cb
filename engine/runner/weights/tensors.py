"""The weights of a model as torch tensors, by their names in a Hugging Face checkpoint.

Both formats are memory-mapped and read a tensor at a time, so that loading never holds two copies of the model.
GGUF names are translated by a table; the rows of Q and K, which GGUF stores interleaved for a rope of neighbouring
pairs, are put back in order for the half-split rope used here.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.gguf_file import GgufFile

_GGUF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "model.rope_factors",
}
_GGUF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
_PERMUTED_ARCHITECTURES = frozenset({"llama"})
_SKIPPED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix as it lies in a GGUF file: `data` is uint8 `[rows, bytes a row]`, memory-mapped; `type_id` is GGUF's.

    `interleaved_heads` is the number of heads whose rows lie as neighbouring pairs, 0 where they are in order.
    """

    type_id: int
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]
    interleaved_heads: int


class Tensors(Protocol):
    """Named weights, read one at a time."""

    @property
    def names(self) -> Set[str]:
        """The names there are."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Tensor `name`, in the precision in which it is stored; it may share memory with the file: do not write."""
        ...

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        """Tensor `name` undecoded, where the format has blocks."""
        ...


class GgufTensors:
    """The tensors of a GGUF file, dequantised."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self._stored = {_checkpoint_name(name): name for name in self.file.tensors}

    @property
    def names(self) -> Set[str]:
        return self._stored.keys()

    def load(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        array = self.file.array(stored)
        heads = self._interleaved_heads(stored)
        if heads:
            array = _half_split(array, heads)
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        stored = self._stored[name]
        tensor, heads = self.file.tensors[stored], self._interleaved_heads(stored)
        return StoredBlocks(tensor.type_id, tensor.shape, self.file.blocks(stored), heads)

    def _interleaved_heads(self, stored: str) -> int:
        architecture = self.file.metadata["general.architecture"]
        match = _GGUF_LAYER.fullmatch(stored)
        if architecture not in _PERMUTED_ARCHITECTURES or match is None or match[2] not in _PERMUTED:
            return 0
        heads = self.file.metadata[f"{architecture}.attention.head_count"]
        return int(self.file.metadata.get(f"{architecture}.{_PERMUTED[match[2]]}", heads))


class SafetensorsTensors:
    """The tensors of all *.safetensors files of a directory, with or without an index."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelLoadError(f"{folder} holds no *.safetensors files; convert the weights to safetensors")
        self._homes: dict[str, Any] = {}
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
            except SafetensorError as problem:
                raise ModelLoadError(f"{path} is damaged or cut short: {problem}") from problem
            names = (name for name in opened.keys() if not name.endswith(_SKIPPED_SUFFIXES))  # noqa: SIM118
            self._homes.update(dict.fromkeys(names, opened))

    @property
    def names(self) -> Set[str]:
        return self._homes.keys()

    def load(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._homes[name].get_tensor(name)
        return tensor

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        return None


def _checkpoint_name(stored: str) -> str:
    """A name that is not in the tables stays as it is, and will be reported as left over."""
    match = _GGUF_LAYER.fullmatch(stored)
    if match is None or match[2] not in _GGUF_LAYER_NAMES:
        return _GGUF_NAMES.get(stored, stored)
    return f"model.layers.{match[1]}.{_GGUF_LAYER_NAMES[match[2]]}.{match[3]}"


def _half_split(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows x0 y0 x1 y1 ... of each head -> x0 x1 ... y0 y1 ...; `[heads * head_dim, ...]`."""
    paired = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(array.shape)
