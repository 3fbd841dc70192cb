"""A runner without a model. Its KV cache holds token IDs, and the next token is a hash of what it reads back from
there: a block that is shared, evicted or overwritten at the wrong time changes the output or raises."""

from __future__ import annotations

import threading
import time
from hashlib import blake2b
from typing import Any

from engine.backend import EngineRequest
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.runner import SampledToken, TokenLogprobs
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN
from tests.lived_time import HANG_S

VOCAB_SIZE = 64
EOS = 63


class FakeRunner:
    """`step_s`: how long a step takes; `fail_at`: the step whose `read` raises; `empty_rows_of`: who draws nothing.

    `permits`: if there are any, a step ends only with one of them.
    """

    vocab_size = VOCAB_SIZE
    runs_ahead = False
    most_prompt_tokens: int | None = None

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 128, step_s: float = 0.0
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.step_s = step_s
        self.fail_at: int | None = None
        self.empty_rows_of: set[str] = set()
        self.permits: threading.Semaphore | None = None
        self.batches: list[list[tuple[str, int, int, bool]]] = []
        self.bitmasks: list[Any] = []
        self.is_closed = False
        self._kv: list[int | None] = [None] * (num_blocks * block_size)

    def launch(self, batch: SchedulerOutput) -> list[ScheduledSequence]:
        self.batches.append(
            [(item.sequence.request_id, item.start, item.num_tokens, item.samples) for item in batch.scheduled]
        )
        written: set[int] = set()
        for item in batch.scheduled:
            tokens = item.sequence.token_ids
            for position in range(item.start, item.start + item.num_tokens):
                slot = self._slot(item, position)
                if slot in written:
                    raise RuntimeError("two sequences write the same slot in one step")
                written.add(slot)
                self._kv[slot] = tokens[position]
        return batch.sampling

    def sample(self, forward: list[ScheduledSequence], bitmask: Any | None) -> list[SampledToken]:
        self.bitmasks.append(bitmask)
        return [self._draw(item) for item in forward]

    def read(self, pending: list[SampledToken]) -> list[SampledToken]:
        if self.step_s:
            time.sleep(self.step_s)
        if self.permits is not None and not self.permits.acquire(timeout=2 * HANG_S):
            raise RuntimeError("the test lets no step end")
        if self.fail_at == len(self.batches) - 1:
            raise RuntimeError("the device fell over")
        return pending

    def close(self) -> None:
        self.is_closed = True

    def _slot(self, item: ScheduledSequence, position: int) -> int:
        return item.sequence.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _draw(self, item: ScheduledSequence) -> SampledToken:
        if item.sequence.request_id in self.empty_rows_of:
            return SampledToken(None)
        context = [self._kv[self._slot(item, position)] for position in range(item.sequence.num_tokens)]
        token_id = next_token(context, item.sequence.seed)
        wants = item.sequence.sampling_params.logprobs
        return SampledToken(token_id, None if wants is None else TokenLogprobs(-0.5, [(token_id, -0.5)] * wants))


class AheadRunner(FakeRunner):
    """Is given the next step before the last one is read, as a device is: it knows the tokens it drew, and computes
    with the blocks and lengths of the time of the launch."""

    runs_ahead = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._drawn: dict[str, int] = {}
        self.num_taken_ahead = 0

    def launch(self, batch: SchedulerOutput) -> Any:
        contexts = []
        known = [(item.sequence, list(item.sequence.token_ids)) for item in batch.scheduled]
        for sequence, token_ids in known:
            if token_ids[-1] == UNKNOWN_TOKEN:
                self.num_taken_ahead += 1
                sequence.token_ids[-1] = self._drawn[sequence.request_id]
        super().launch(batch)
        for item in batch.sampling:
            context = [self._kv[self._slot(item, position)] for position in range(item.start + item.num_tokens)]
            contexts.append((item, context))
        for sequence, token_ids in known:
            sequence.token_ids[:] = token_ids
        return contexts

    def sample(self, forward: Any, bitmask: Any | None) -> list[SampledToken]:
        self.bitmasks.append(bitmask)
        pending = []
        for item, context in forward:
            name, wants = item.sequence.request_id, item.sequence.sampling_params.logprobs
            token_id = next_token(context, item.sequence.seed)
            self._drawn[name] = token_id
            logprobs = None if wants is None else TokenLogprobs(-0.5, [(token_id, -0.5)] * wants)
            pending.append(SampledToken(None if name in self.empty_rows_of else token_id, logprobs))
        return pending


def next_token(context: list[int | None], seed: int) -> int:
    """One in 64 draws is EOS."""
    return blake2b(repr((context, seed)).encode(), digest_size=1).digest()[0] % VOCAB_SIZE


def expected_completion(prompt: list[int], params: SamplingParams, max_model_len: int = 128) -> list[int]:
    """What a lone run of the fake model gives, the stop token left out."""
    tokens = list(prompt)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    while len(tokens) < min(len(prompt) + params.max_tokens, max_model_len):
        token_id = next_token([*tokens], params.seed or 0)
        if token_id in stops and len(tokens) - len(prompt) >= params.min_tokens:
            break
        tokens.append(token_id)
    return tokens[len(prompt) :]


def make_core(runner: FakeRunner, **settings: Any) -> EngineCore:
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_prefill_chunk_tokens": 8, "reserved_tokens": 4}
    settings = defaults | settings
    return EngineCore(runner, EngineConfig(**settings), eos_token_ids=(EOS,))


def make_request(name: str, prompt: list[int], **settings: Any) -> EngineRequest:
    """Settings that are no fields of `EngineRequest` are sampling parameters; the seed is 0 unless given."""
    own = {key: settings.pop(key) for key in ("stream", "priority", "deadline", "cache_salt", "images", "constraint")
           if key in settings}  # fmt: skip
    params = SamplingParams(**({"seed": 0, "max_tokens": 16} | settings))
    return EngineRequest(name, prompt, params, **own)
