"""What runs next. Every sequence is in one of two queues, both in order of (priority, arrival).

    waiting ── admit: a seat and blocks ──► running ── stop, length, error, cancel, deadline ──► gone
        ▲                                      │
        └──────── preempt: blocks ran out ─────┘

A step computes at most `max_num_batched_tokens`. Every running decode is in every step, with one token and those that
its grammar has forced behind that. What is left goes to prefill, in order, in chunks; while anything decodes, prefill
as a whole gets `max_prefill_chunk_tokens` at most, so a decode never waits for more than that. A prompt longer than the
step takes half of what is left if others want prefill too: short ones do not queue behind all of a long one, and the
long one moves on in every step. Where a runner's time grows with every prompt token, a prompt that the next step can
hold whole is not begun at the end of this one: the others would wait for a part that answers nobody.

When blocks run out, the last running sequence in order gives up its own and waits for its turn again, with its tokens;
the first one is never a victim, so something always finishes. The same happens to the newer half of a batch that the
device has no memory for; from then on so many seats are taken away, and given back one with each sequence that ends.
Admission wants blocks for all tokens at once, and spare ones for the next `reserved_tokens` of every running sequence,
so that it does not lead straight to preemption. The head of the waiting queue is never passed over.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from engine.backend import ConstraintRefusedError, DeadlineExceededError, EngineError, RequestRefusedError
from engine.config import EngineConfig
from engine.core.block_manager import BlockManager
from engine.core.grammar import GrammarMatcher
from engine.core.runner import SampledToken
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN, Sequence, SequenceStatus
from engine.core.sequence_output import SequenceOutput
from recipe.stream.inference import InferenceFinishReason

_order, _num_tokens = attrgetter("order"), attrgetter("num_tokens")
_MAX_FORCED_TOKENS = 16  # at once, so that no step becomes long for the others in it
# A token more in a step costs little as long as there are few. Beside many sequences it costs what it costs in a step
# of its own, and the others wait for it; but a longer run is cheaper together than token by token.
_FEW_SEQUENCES = 3
_LONG_RUN = 4


class Scheduler:
    """Owns every sequence's standing. Engine thread alone."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        *,
        takes_forced_tokens: bool = False,
        most_prompt_tokens: int | None = None,
    ) -> None:
        """With `takes_forced_tokens`, tokens that grammars force are appended without being drawn.

        `most_prompt_tokens` in a step, whatever the configuration allows: the runner's time grows with each from there
        on. None means no such limit.
        """
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._config = config
        self._blocks = blocks
        self.takes_forced_tokens = takes_forced_tokens
        self._most_prompt_tokens = most_prompt_tokens or config.max_num_batched_tokens
        self._fills_steps = most_prompt_tokens is None  # with a part of a prompt, too, as the step takes no longer
        self._num_seats = config.max_num_seqs  # sequences that may run: fewer after memory has run out
        self._timed: dict[Sequence, None] = {}  # those with a deadline, in order of arrival
        self._outputs: list[SequenceOutput] = []  # of what happened outside the batch: admissions, drops

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._outputs)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)
        if sequence.deadline is not None:
            self._timed[sequence] = None

    def finish(self, sequence: Sequence) -> None:
        """Let go of a sequence in whatever state it is: its blocks are free now. Idempotent."""
        if sequence.is_finished:
            return
        queue = self.running if sequence.status is SequenceStatus.RUNNING else self.waiting
        self._num_seats = min(self._num_seats + (queue is self.running), self._config.max_num_seqs)
        del queue[bisect_left(queue, sequence.order, key=_order)]
        self._blocks.release(sequence)
        self._timed.pop(sequence, None)
        if sequence.token_ids[-1] == UNKNOWN_TOKEN:
            del sequence.token_ids[-1]
        sequence.status = SequenceStatus.FINISHED
        sequence.sampler_state = sequence.matcher = None

    def expire(self, now: float) -> None:
        """Drop what passed its deadline, queued or running. `now` is in monotonic seconds."""
        for sequence in [s for s in self._timed if s.deadline is not None and s.deadline <= now]:
            was = "running" if sequence.status is SequenceStatus.RUNNING else "queued"
            self._drop(sequence, DeadlineExceededError(f"the deadline passed while the request was {was}"))

    def schedule(self) -> SchedulerOutput:
        """The next step's batch, with blocks for every token in it. Empty only when nothing can run."""
        num_preemptions = self.num_preemptions
        budget = self._prefill_budget()
        decodes: list[ScheduledSequence] = []
        prefills: list[ScheduledSequence] = []
        num_spare = self._config.max_num_batched_tokens - len(self.running)  # what decodes may take beyond a token each
        for sequence in list(self.running):
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # gave up its blocks to one before it
            if sequence.num_tokens >= sequence.max_length:
                continue  # its last token was drawn and not read yet
            if not sequence.is_decoding:
                if num_tokens := self._chunk(sequence, budget):
                    prefills.append(_scheduled(sequence, num_tokens))
                    budget -= num_tokens
            elif self._make_room(sequence):
                num_forced = min(sequence.num_uncomputed_tokens - 1, num_spare)
                decodes.append(_scheduled(sequence, 1 + num_forced))
                num_spare -= num_forced
        if self.num_preemptions == num_preemptions and self._may_admit(budget):
            self._admit(prefills, budget)
        return SchedulerOutput(sorted(decodes, key=_num_tokens) + prefills)

    def shed(self, batch: SchedulerOutput, reason: str) -> SchedulerOutput:
        """What to compute of a batch that the device has no memory for: its older half; the others wait again.

        The batch was not expected yet; those of it that have finished since are left out. A sequence that does not fit
        alone ends with an error that gives the `reason`.
        """
        left = sorted((item for item in batch.scheduled if not item.sequence.is_finished), key=_order_of)
        if len(left) == 1 == len(batch.scheduled):
            self._drop(left.pop().sequence, EngineError(f"the device has no memory for the request: {reason}"))
        elif len(left) == len(batch.scheduled):
            for item in left[len(left) // 2 :]:
                self._preempt(item.sequence, "the device ran out of memory")
            del left[len(left) // 2 :]
            self._num_seats = max(1, len(self.running))
        kept = {item.sequence for item in left}
        return SchedulerOutput([item for item in batch.scheduled if item.sequence in kept])

    def expect(self, batch: SchedulerOutput) -> None:
        """The batch is under way: count its tokens as computed, and those drawn from it as there, though unknown."""
        for item in batch.scheduled:
            if item.sequence.is_finished:
                continue
            item.sequence.num_computed_tokens = item.start + item.num_tokens
            if item.samples:
                item.sequence.token_ids.append(UNKNOWN_TOKEN)

    def update(self, batch: SchedulerOutput, sampled: list[SampledToken]) -> list[SequenceOutput]:
        """Take in the result of an expected batch; a sequence may have been preempted since.

        Returns the outputs of the batch and of what happened since the last update.
        """
        outputs, self._outputs = self._outputs, []
        rows = iter(sampled)
        for item in batch.scheduled:
            row = next(rows) if item.samples else None
            sequence = item.sequence
            if sequence.is_finished:
                continue
            if sequence.status is SequenceStatus.RUNNING:
                self._blocks.publish(sequence)
            if row is not None:
                outputs.append(self._advance(sequence, row))
        return outputs

    def _prefill_budget(self) -> int:
        uncomputed = ((len(each.token_ids) - each.num_computed_tokens, each.num_forced_tokens) for each in self.running)
        num_decodes = sum(number for number, num_forced in uncomputed if number <= 1 + num_forced)
        left = max(0, min(self._config.max_num_batched_tokens - num_decodes, self._most_prompt_tokens))
        limit = self._config.max_prefill_chunk_tokens
        return min(left, limit) if num_decodes and limit is not None else left

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of `sequence` to prefill now, of the `budget` that is left."""
        wanted = sequence.num_uncomputed_tokens
        if wanted > budget > 1 and self._others_want_prefill(sequence):
            return budget // 2
        return min(wanted, budget)

    def _others_want_prefill(self, sequence: Sequence) -> bool:
        if len(self.running) < self._num_seats and any(other is not sequence for other in self.waiting[:2]):
            return True
        return any(not other.is_decoding and other is not sequence for other in self.running)

    def _make_room(self, sequence: Sequence) -> bool:
        """Get `sequence` the block its next token needs; false when it had to give up its own instead."""
        while not self._blocks.grow(sequence, sequence.num_tokens):
            victim = self.running[-1]
            self._preempt(victim, "the KV cache ran out of blocks")
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, reason: str) -> None:
        self.num_preemptions += 1
        victim.num_preemptions += 1
        if self._config.stop_preempted_request:
            self._drop(victim, EngineError(f"the request was stopped: {reason}"))
            return
        self.running.remove(victim)
        self._blocks.release(victim)
        victim.status = SequenceStatus.WAITING
        self.add(victim)

    def _admit(self, prefills: list[ScheduledSequence], budget: int) -> None:
        """Move sequences from waiting to running while there is budget, a seat and blocks."""
        num_spare = sum(map(self._growth, self.running))
        while self._may_admit(budget):
            sequence = self.waiting[0]
            if self._is_better_left_whole(sequence, prefills, budget):
                return
            num_spare += self._growth(sequence)
            if not self._blocks.admit(sequence, num_spare):
                return
            num_tokens = self._chunk(sequence, budget)
            del self.waiting[0]
            insort(self.running, sequence, key=_order)
            sequence.status = SequenceStatus.RUNNING
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = sequence.num_computed_tokens
                self._outputs.append(SequenceOutput(sequence))
            prefills.append(_scheduled(sequence, num_tokens))
            budget -= num_tokens

    def _may_admit(self, budget: int) -> bool:
        return budget > 0 and bool(self.waiting) and len(self.running) < self._num_seats

    def _is_better_left_whole(self, sequence: Sequence, prefills: list[ScheduledSequence], budget: int) -> bool:
        """Whether `sequence` should wait for the next step, which can hold all of it, behind prompts that end here."""
        if self._fills_steps or not prefills or sequence.num_tokens <= budget:
            return False
        wanted = sequence.num_tokens - self._blocks.num_cached_tokens(sequence)
        return budget < wanted <= self._prefill_budget() and all(item.samples for item in prefills)

    def _growth(self, sequence: Sequence) -> int:
        """Blocks that the sequence will soon need beyond those for the tokens it has."""
        num_tokens, blocks_for = len(sequence.token_ids), self._blocks.blocks_for
        return blocks_for(min(sequence.max_length, num_tokens + self._config.reserved_tokens)) - blocks_for(num_tokens)

    def _advance(self, sequence: Sequence, row: SampledToken) -> SequenceOutput:
        """Write the drawn token over the unknown one and see whether it is the last."""
        token_id = row.token_id
        if token_id is None:
            del sequence.token_ids[-1]
            if _has_ended(sequence):
                return self._stop(sequence, SequenceOutput(sequence))
            return self._fail(sequence, _dead_end(sequence))
        sequence.token_ids[-1] = token_id
        output = SequenceOutput(sequence, logprobs=None if row.logprobs is None else [row.logprobs])
        if token_id in sequence.stop_ids and sequence.num_completion_tokens > sequence.sampling_params.min_tokens:
            output.num_hidden_tokens, output.logprobs = 1, None
            return self._stop(sequence, output)
        output.token_ids.append(token_id)
        if sequence.matcher is not None:
            if error := self._follow_grammar(sequence, sequence.matcher, output):
                return self._fail(sequence, error)
            if _has_ended(sequence):
                return self._stop(sequence, output)
        if sequence.num_tokens >= sequence.max_length:
            output.finish_reason = InferenceFinishReason.Length
            self.finish(sequence)
        return output

    def _follow_grammar(self, sequence: Sequence, matcher: GrammarMatcher, output: SequenceOutput) -> Exception | None:
        """Advance the matcher, and both over what is forced; what goes wrong concerns this sequence alone."""
        try:
            if not matcher.accept_token(output.token_ids[-1]):
                return _limit_of(matcher) or EngineError("the constraint does not allow the token that was drawn")
            forced = matcher.accept_forced(self._num_forceable(sequence), self._num_worth_forcing)
        except Exception as error:
            return EngineError(f"the constraint failed: {error}")
        sequence.num_forced_tokens = len(forced)
        sequence.token_ids += forced
        output.token_ids += forced
        return None

    @property
    def _num_worth_forcing(self) -> int:
        """How many forced tokens must come together to be taken without a draw."""
        return 1 if len(self.running) <= _FEW_SEQUENCES else _LONG_RUN

    def _num_forceable(self, sequence: Sequence) -> int:
        """How many tokens may be forced now; none where every token needs its logits."""
        params = sequence.sampling_params
        if not self.takes_forced_tokens or params.logprobs is not None or params.bad_words_token_ids:
            return 0
        return min(_MAX_FORCED_TOKENS, sequence.max_length - sequence.num_tokens)

    def _stop(self, sequence: Sequence, output: SequenceOutput) -> SequenceOutput:
        self.finish(sequence)
        output.finish_reason = InferenceFinishReason.Stop
        return output

    def _fail(self, sequence: Sequence, error: Exception) -> SequenceOutput:
        self.finish(sequence)
        return SequenceOutput(sequence, error=error)

    def _drop(self, sequence: Sequence, error: Exception) -> None:
        self._outputs.append(self._fail(sequence, error))


def _order_of(item: ScheduledSequence) -> tuple[int, int]:
    return item.sequence.order


def _scheduled(sequence: Sequence, num_tokens: int) -> ScheduledSequence:
    start = sequence.num_computed_tokens
    return ScheduledSequence(sequence, start, num_tokens, start + num_tokens == len(sequence.token_ids))


def _has_ended(sequence: Sequence) -> bool:
    """Whether the sequence's grammar has ended: then it does, too, without waiting for a stop token."""
    return sequence.matcher is not None and sequence.matcher.is_terminated()


def _dead_end(sequence: Sequence) -> Exception:
    """Why no token can be drawn."""
    if sequence.matcher is None:
        return EngineError("the model's logits hold no number to draw from")
    return _limit_of(sequence.matcher) or RequestRefusedError(
        "the constraint allows no further token that the request's other settings allow"
    )


def _limit_of(matcher: GrammarMatcher) -> Exception | None:
    """What the client is told whose grammar has run into a limit on the way."""
    if not (reason := matcher.failure()):
        return None
    return ConstraintRefusedError(f"the constraint is too complex to be followed to its end: {reason}")
