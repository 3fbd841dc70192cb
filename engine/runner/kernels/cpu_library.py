"""The CPU library through ctypes: the structs of cpu_model.h, and the functions of cpu_library.h.

A call releases the GIL for as long as it computes.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

INSTRUCTION_SETS = ("plain", "avx2", "avx512", "avx512bf16")
PHASES = ("embedding", "norms", "qkv", "rope", "attention", "output", "gate-up", "down", "head")


class Matrix(Structure):
    """`struct matrix`: packed weights, or none where `tiles` is None."""

    _fields_ = (
        ("tiles", c_void_p),
        ("bias", c_void_p),
        ("kind", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
    )


class Layer(Structure):
    """`struct layer`: norms, matrices, and the layer's part of the KV cache."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        *((name, Matrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


class Model(Structure):
    """`struct model`."""

    _fields_ = (
        *((name, c_int32) for name in ("num_layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "block_size")),
        ("eps", c_float),
        ("scale", c_float),
        ("frequencies", c_void_p),
        ("final_norm", c_void_p),
        ("embedding", Matrix),
        ("head", Matrix),
        ("layers", POINTER(Layer)),
    )


class Batch(Structure):
    """`struct batch`: what one step computes."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_spans", c_int32),
        ("num_sampling", c_int32),
        ("token_ids", c_void_p),
        ("spans", c_void_p),
        ("tables", c_void_p),
        ("sampling_rows", c_void_p),
        ("logits", c_void_p),
    )


class Draws(Structure):
    """`struct draws`: the rows of logits of a step, and what is drawn from them."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in ("logits", "settings", "edit_starts", "edits", "bitmask", "token_ids", "logprobs")
        ),
        ("num_rows", c_int32),
        ("vocabulary", c_int32),
    )


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """The library at `path` with the types of its functions; raises `OSError` for one that cannot be loaded."""
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("best_set", c_int32, []),
        ("engine_create", c_void_p, [POINTER(Model), c_int32, POINTER(c_int32), c_int32]),
        ("engine_destroy", None, [c_void_p]),
        ("engine_step", None, [c_void_p, POINTER(Batch)]),
        ("engine_sample", None, [c_void_p, POINTER(Draws)]),
        ("engine_times", None, [c_void_p, POINTER(c_int64)]),
        ("packed_kind", c_int32, [c_int32]),
        ("packed_bytes", c_int64, [c_int32, c_int32, c_int32]),
        ("pack_matrix", c_int32, [c_int32, c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
