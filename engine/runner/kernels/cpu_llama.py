"""A Llama-shaped model that computes a whole step in one call of the CPU library.

Its weights are packed as they are stored; its KV cache is memory of the runner's, in an order of its own (cpu_model.h).
Whatever a batch holds, decodes or prefill chunks, its rows go through the same code, and no row's result depends on
the others.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from typing import Any

import numpy as np

from engine.core.scheduler_output import SchedulerOutput
from engine.runner.cores import staying_on
from engine.runner.kernels.cpu_library import INSTRUCTION_SETS, PHASES, Batch, Draws, Layer, Matrix, Model
from engine.runner.kernels.cpu_weights import PackedWeights, check_shape
from engine.runner.kv_pages import KVPages
from engine.runner.models.model_tensors import ModelTensors, model_frequencies
from engine.runner.models.registry import architecture_of
from engine.runner.models.shapes import EMBEDDING, HEAD
from engine.runner.rope_frequencies import rope_magnitude
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.tensors import Tensors

BFLOAT16_BITS = np.dtype(np.uint16)  # numpy has no bfloat16: the KV cache's numbers are known by their bits
_MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_LINE_FLOATS = 16  # of a cache line
_NORMS = {
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}


class CompiledLlama:
    """A model on the CPU library. `weight_bytes` is known at once; `load` reads the weights, `bind` ties it to a cache.

    `instruction_set` is one of those the library was built for, the best of them by default. With `cpus`, one for each
    of `threads`, every thread stays on its own; the first is the calling thread's while it computes.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        config: dict[str, Any],
        tensors: Tensors,
        *,
        threads: int,
        cpus: list[int] | None = None,
        instruction_set: str | None = None,
    ) -> None:
        self.config = architecture_of(config).read(config)
        self.vocab_size, self.group, self.windows = self.config.vocab_size, self.config.group, self.config.windows[:1]
        self.kv_shape = self.config.kv_shape(BFLOAT16_BITS)
        self.instruction_set = instruction_set or INSTRUCTION_SETS[library.best_set()]
        self._library, self.threads, self.cpus = library, threads, cpus
        self._own_cpu = None if cpus is None else cpus[0]
        found = ModelTensors(self.config, tensors)
        self._scale = self.config.head_dim**-0.5 * rope_magnitude(config) ** 2  # queries and keys both grow
        self._frequencies = np.ascontiguousarray(model_frequencies(config, self.config, found), np.float32)
        self._unread: ModelTensors | None = found  # None once it is read: the file's pages need not stay in memory
        self._vectors: dict[str, np.ndarray[Any, Any]] = {}  # float32, by name; the library keeps their addresses
        self._vector_names = [name for name, shape in found.shapes.items() if len(shape) == 1]
        matrices = {name: (shape[0], shape[1]) for name, shape in found.shapes.items() if len(shape) == 2}
        self._weights = PackedWeights(library, found, matrices)
        self.weight_bytes, self.number_format = self._weights.num_bytes, self._weights.number_format
        self._engine: int | None = None
        self._batch = _BatchArrays()
        self._logits = _LogitRows(self.vocab_size)

    def load(self) -> CompiledLlama:
        """Read and pack the weights; raises `ModelLoadError`."""
        if self._unread is None:
            raise RuntimeError("the weights are loaded already")
        self._weights.load(self.threads)
        for name in self._vector_names:
            vector = self._unread.floats(name)
            check_shape(name, vector.shape, self._unread.shapes[name])
            self._vectors[name] = np.ascontiguousarray(vector)
        self._unread = None
        return self

    def bind(self, cache: KVPages, block_size: int) -> None:
        """Make the engine that writes to `cache`; raises `ModelLoadError` without memory for it."""
        config = self.config
        layers = (Layer * config.num_layers)(*(self._layer(i, cache) for i in range(config.num_layers)))
        embedding = self._weights.matrix(EMBEDDING)
        model = Model(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            eps=config.rms_norm_eps,
            scale=self._scale,
            frequencies=self._frequencies.ctypes.data,
            final_norm=self._vector("model.norm.weight"),
            embedding=embedding,
            head=embedding if config.tied else self._weights.matrix(HEAD),
            layers=layers,
        )
        set_id = INSTRUCTION_SETS.index(self.instruction_set)
        cpus = None if self.cpus is None else (ctypes.c_int32 * self.threads)(*self.cpus)
        self._engine = self._library.engine_create(ctypes.byref(model), self.threads, cpus, set_id)
        if self._engine is None:
            raise ModelLoadError("there is no memory for the CPU kernels, or not enough threads: lower --threads")
        weakref.finalize(self, self._library.engine_destroy, self._engine)
        self._cache, self._block_size = cache, block_size

    def forward(self, batch: SchedulerOutput) -> np.ndarray[Any, Any]:
        """Compute the batch's tokens, write their KV to the cache.

        Returns float32 logits `[sampling rows, V]`, which are good until the next call.
        """
        if self._engine is None:
            raise RuntimeError("the model is bound to no cache yet")
        arrays = self._batch.fill(batch)
        logits = self._logits.rows(len(arrays.sampling_rows))
        with staying_on(self._own_cpu):
            self._library.engine_step(self._engine, ctypes.byref(arrays.struct(logits.ctypes.data)))
        return logits

    def sample(self, draws: Draws) -> None:
        """Draw the tokens that `draws` asks for, on the threads of the model."""
        if self._engine is None:
            raise RuntimeError("the model is bound to no cache yet")
        with staying_on(self._own_cpu):
            self._library.engine_sample(self._engine, ctypes.byref(draws))

    def phase_seconds(self) -> dict[str, float]:
        """Seconds spent in each phase of the steps so far."""
        times = (ctypes.c_int64 * len(PHASES))()
        self._library.engine_times(self._engine, times)
        return {name: time / 1e9 for name, time in zip(PHASES, times, strict=True)}

    def _layer(self, index: int, cache: KVPages) -> Layer:
        prefix = f"model.layers.{index}."
        norms = {field: self._vector(f"{prefix}{name}.weight") for field, name in _NORMS.items()}
        matrices = {field: self._matrix(f"{prefix}{name}") for field, name in _MATRICES.items()}
        keys, values = cache.addresses[index]
        return Layer(**norms, **matrices, keys=keys, values=values)

    def _matrix(self, module: str) -> Matrix:
        return self._weights.matrix(f"{module}.weight", self._vectors.get(f"{module}.bias"))

    def _vector(self, name: str) -> int | None:
        """The address of a vector, None where the model has none of that name."""
        vector = self._vectors.get(name)
        return None if vector is None else int(vector.ctypes.data)


class _LogitRows:
    """Memory for logits, kept from step to step: the system zeroes fresh memory, which takes as long as some layers.

    Rows begin with a cache line, so that storing sixteen logits touches one.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._floats = np.empty(0, np.float32)

    def rows(self, count: int) -> np.ndarray[Any, Any]:
        """float32 `[count, V]`, the same memory at every call."""
        size = count * self._vocab_size
        if len(self._floats) < size:
            memory = np.empty(size + _LINE_FLOATS, np.float32)
            self._floats = memory[-(memory.ctypes.data // 4) % _LINE_FLOATS :]
        return self._floats[:size].reshape(count, self._vocab_size)


class _BatchArrays:
    """A scheduler's batch as the flat arrays of `struct batch`; valid until the next `fill`."""

    def fill(self, batch: SchedulerOutput) -> _BatchArrays:
        self.token_ids, self.spans = array("i"), array("i")
        self.tables, self.sampling_rows = array("i"), array("i")
        for item in batch.scheduled:
            row, sequence = len(self.token_ids), item.sequence
            self.spans.extend((row, item.num_tokens, item.start, len(self.tables)))
            if item.num_tokens == 1:
                self.token_ids.append(sequence.token_ids[item.start])
            else:
                self.token_ids.extend(sequence.token_ids[item.start : item.start + item.num_tokens])
            self.tables.extend(sequence.block_table)
            if item.samples:
                self.sampling_rows.append(row + item.num_tokens - 1)
        return self

    def struct(self, logits: int) -> Batch:
        return Batch(
            num_rows=len(self.token_ids),
            num_spans=len(self.spans) // 4,
            num_sampling=len(self.sampling_rows),
            token_ids=self.token_ids.buffer_info()[0],
            spans=self.spans.buffer_info()[0],
            tables=self.tables.buffer_info()[0],
            sampling_rows=self.sampling_rows.buffer_info()[0],
            logits=logits,
        )
