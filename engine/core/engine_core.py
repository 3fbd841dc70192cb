"""The engine without its thread: requests in, steps, outputs.

A step is schedule, launch, fill the grammar masks while the forward runs, sample, read, update. A runner that runs
ahead has the next step launched before this one is read: its inputs are on the device already. What the host learns
from the tokens it then learns one step late, while the device computes. On the CPU `launch` is the forward pass, and
a thread fills the masks beside it.

    runs ahead   launch N+1 | read N, update, masks | sample N+1 | launch N+2 | ...
    otherwise    launch N, masks | sample N | read N, update | launch N+1, masks | ...

A batch that the device has no memory for is launched again without its newest sequences, until it fits.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable
from itertools import count
from typing import Any

from engine.backend import EngineRequest, EngineStats, RequestRefusedError
from engine.config import ConfigError, EngineConfig
from engine.core.block_manager import BlockManager
from engine.core.grammar import BitmaskFiller
from engine.core.runner import OutOfMemoryError, Runner
from engine.core.sampling_params import MAX_SEED
from engine.core.scheduler import Scheduler
from engine.core.scheduler_output import SchedulerOutput
from engine.core.sequence import Sequence
from engine.core.sequence_output import SequenceOutput
from engine.core.step_masks import StepMasks

logger = logging.getLogger(__name__)

_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so that consecutive arrivals get far and different seeds


class EngineCore:
    """Sequences over one runner. Engine thread alone, but for `stats`.

    `eos_token_ids` end every sequence that does not ignore them. Without a `bitmask_filler`, requests with a
    constraint are refused.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        eos_token_ids: Iterable[int] = (),
        bitmask_filler: BitmaskFiller | None = None,
    ) -> None:
        self.runner = runner
        self.blocks = BlockManager(runner.num_blocks, runner.block_size, config.enable_prefix_caching)
        self.scheduler = Scheduler(
            config,
            self.blocks,
            takes_forced_tokens=not runner.runs_ahead,
            most_prompt_tokens=runner.most_prompt_tokens,
        )
        self.max_model_len = min(runner.max_model_len, runner.num_blocks * runner.block_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._masks = StepMasks(bitmask_filler)
        self._base_seed = config.seed
        self._under_way: tuple[SchedulerOutput, Any] | None = None  # a batch that was sampled and not read
        self._arrivals = count()
        self._num_steps = self._num_prompt_tokens = self._num_cached_tokens = self._num_completion_tokens = 0
        if self.max_model_len < 2:
            raise ConfigError(
                f"kv_cache_mib is too small: {runner.num_blocks} blocks of {runner.block_size} tokens fit"
            )
        if self.max_model_len < runner.max_model_len:
            logger.warning("the KV cache holds %d tokens: no sequence can be longer", self.max_model_len)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add_request(self, request: EngineRequest) -> Sequence:
        """Queue a request. Raises `RequestRefusedError` for one that could never run."""
        self._check_request(request)
        params, arrival = request.sampling_params, next(self._arrivals)
        num_prompt_tokens = len(request.prompt_token_ids)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_token_ids)
        sequence = Sequence(
            request_id=request.request_id,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt_tokens,
            sampling_params=params,
            seed=self._resolve_seed(params.seed, arrival),
            stop_ids=stop_ids,
            max_length=min(num_prompt_tokens + params.max_tokens, self.max_model_len),
            arrival=arrival,
            priority=request.priority,
            deadline=request.deadline,
            cache_salt=request.cache_salt,
            matcher=None if request.constraint is None else request.constraint.payload.new_matcher(stop_ids),
            queued_at=time.monotonic(),
        )
        self.scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Free everything the sequence holds, now. Idempotent."""
        self.scheduler.finish(sequence)

    def step(self) -> list[SequenceOutput]:
        """Run one step and return what it gave each sequence."""
        started_at = time.monotonic()
        self.scheduler.expire(started_at)
        batch, forward = self._launch(self.scheduler.schedule())
        outputs = self._take_in() if self.runner.runs_ahead else []
        batch, pending = self._sample(batch, forward)
        if pending is not None:
            self._under_way = batch, pending
            self.scheduler.expect(batch)
        if not self.runner.runs_ahead:
            outputs = self._take_in()
        self._count(outputs, started_at)
        return outputs

    def reset_prefix_cache(self) -> None:
        self.blocks.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Raise `BlockIntegrityError` when blocks and sequences disagree."""
        self.blocks.check_integrity([*self.scheduler.waiting, *self.scheduler.running])

    def stats(self) -> EngineStats:
        """A snapshot; may be called from any thread, as it only reads numbers."""
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_blocks_used=self.blocks.num_used,
            kv_blocks_total=self.blocks.num_blocks,
            prompt_tokens=self._num_prompt_tokens,
            cached_prompt_tokens=self._num_cached_tokens,
            completion_tokens=self._num_completion_tokens,
            preemptions=self.scheduler.num_preemptions,
            steps=self._num_steps,
        )

    def close(self) -> None:
        """Drop every sequence and release the runner's memory. Idempotent."""
        for sequence in [*self.scheduler.waiting, *self.scheduler.running]:
            self.scheduler.finish(sequence)
        self._masks.close()
        self.runner.close()

    def _launch(self, batch: SchedulerOutput) -> tuple[SchedulerOutput, Any | None]:
        """Start the forward pass of as much of `batch` as memory allows; None when that is nothing."""
        while batch.scheduled:
            if not self.runner.runs_ahead:
                self._masks.begin(batch)
            try:
                return batch, self.runner.launch(batch)
            except OutOfMemoryError as problem:
                batch = self._shed(batch, problem)
        return batch, None

    def _sample(self, batch: SchedulerOutput, forward: Any | None) -> tuple[SchedulerOutput, Any | None]:
        """Draw the tokens of `forward`, or of what is left of the batch where memory does not suffice."""
        while forward is not None:
            try:
                return batch, self.runner.sample(forward, self._masks.of(batch))
            except OutOfMemoryError as problem:
                batch = self._shed(batch, problem)
            batch, forward = self._launch(batch)
        return batch, None

    def _shed(self, batch: SchedulerOutput, problem: OutOfMemoryError) -> SchedulerOutput:
        kept = self.scheduler.shed(batch, str(problem))
        logger.warning("out of memory with %d sequences, going on with %d", len(batch.scheduled), len(kept.scheduled))
        return kept

    def _take_in(self) -> list[SequenceOutput]:
        """Read what is under way and update the sequences."""
        if self._under_way is None:
            return self.scheduler.update(SchedulerOutput(), [])
        (batch, pending), self._under_way = self._under_way, None
        return self.scheduler.update(batch, self.runner.read(pending))

    def _check_request(self, request: EngineRequest) -> None:
        prompt, vocab_size = request.prompt_token_ids, self.runner.vocab_size
        if not prompt:
            raise RequestRefusedError("the prompt must hold at least one token")
        if len(prompt) >= self.max_model_len:
            limit = self.max_model_len - 1
            raise RequestRefusedError(f"the prompt must hold <= {limit} tokens. Given: {len(prompt)}")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise RequestRefusedError(f"the prompt must hold token IDs in [0, {vocab_size})")
        for name, token_id in request.sampling_params.named_token_ids:
            if token_id >= vocab_size:
                raise RequestRefusedError(f"{name} must hold token IDs in [0, {vocab_size}). Given: {token_id}")
        if request.images:
            raise RequestRefusedError("this model does not take images")
        if request.constraint is not None and not self._masks.are_made:
            raise RequestRefusedError("this engine was started without constrained decoding")

    def _resolve_seed(self, seed: int | None, arrival: int) -> int:
        if seed is not None:
            return seed
        if self._base_seed is None:
            return secrets.randbelow(MAX_SEED + 1)
        return (self._base_seed + (arrival + 1) * _SEED_STRIDE) & MAX_SEED

    def _count(self, outputs: list[SequenceOutput], started_at: float) -> None:
        now = time.monotonic()
        self._num_steps += 1
        for output in outputs:
            sequence, num_tokens = output.sequence, len(output.token_ids) + output.num_hidden_tokens
            self._num_completion_tokens += num_tokens
            if num_tokens and sequence.first_token_at is None:
                sequence.first_token_at = now
            elif output.is_admission:
                sequence.scheduled_at = started_at
                self._num_prompt_tokens += sequence.num_prompt_tokens
                self._num_cached_tokens += sequence.num_cached_tokens
