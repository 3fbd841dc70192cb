"""The prompts of one offline run on their way through the engine core: all queued, then stepped until none is left.

    add ──► waiting in the core ──► step, step, step ──► outputs, in the order of the prompts

The core's scheduler decides what runs together; nothing is sorted or grouped here. Whatever ends the run early, an
interrupt included, the core is left without its sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.backend import ConstraintHandle, EngineRequest, RequestRefusedError
from engine.core.engine_core import EngineCore
from engine.core.runner import TokenLogprobs
from engine.core.sequence import Sequence
from engine.core.sequence_output import SequenceOutput
from engine.entrypoints.completion_text import CompletionText, Detokenizer
from engine.entrypoints.progress import Progress
from engine.entrypoints.request_output import CompletionOutput, Finish, Logprob, RequestOutput
from engine.entrypoints.sampling_params import SamplingParams
from recipe.stream.inference import InferenceFinishReason


@dataclass(slots=True)
class OfflineRequest:
    """A prompt, its settings and what binds its answer; `prompt` is its text, if it was given as one."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    constraint: ConstraintHandle | None = None

    def for_engine(self) -> EngineRequest:
        return EngineRequest(
            self.request_id, self.prompt_token_ids, self.params, constraint=self.constraint, stream=False
        )


@dataclass(slots=True)
class _Generation:
    """One request under way. `text` is there from the start when stop strings are looked for."""

    place: int
    request: OfflineRequest
    text: CompletionText | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class OfflineBatch:
    """Runs requests to their ends, once. Without a `detokenizer` outputs have token IDs and no text."""

    def __init__(self, core: EngineCore, detokenizer: Detokenizer | None, progress: Progress) -> None:
        self._core = core
        self._detokenizer = detokenizer
        self._progress = progress
        self._open: dict[Sequence, _Generation] = {}
        self._outputs: dict[int, RequestOutput] = {}

    def run(self, requests: list[OfflineRequest], on_step: Callable[[], None]) -> list[RequestOutput]:
        """The outputs of `requests`, in their order. Raises `RequestRefusedError` before anything has run.

        `on_step` is called after every step.
        """
        try:
            for place, request in enumerate(requests):
                self._add(place, request)
            while self._open:
                for output in self._core.step():
                    self._take(output)
                on_step()
        finally:
            for sequence in self._open:
                self._core.cancel(sequence)
        return [self._outputs[place] for place in range(len(requests))]

    def _add(self, place: int, request: OfflineRequest) -> None:
        try:
            sequence = self._core.add_request(request.for_engine())
        except RequestRefusedError as error:
            raise RequestRefusedError(f"prompt {place}: {error}") from None
        generation = _Generation(place, request)
        if request.params.stop_strings and self._detokenizer is not None:
            generation.text = self._text(self._detokenizer, request.params)
        self._open[sequence] = generation

    def _take(self, output: SequenceOutput) -> None:
        generation = self._open.get(output.sequence)
        if generation is None:
            return  # of a run that was interrupted
        if output.logprobs is not None:
            generation.logprobs += output.logprobs
        if generation.text is not None and generation.text.push(output.token_ids):
            self._core.cancel(output.sequence)
            output.finish_reason = InferenceFinishReason.Stop
        if output.is_last:
            self._finish(generation, output)

    def _finish(self, generation: _Generation, last: SequenceOutput) -> None:
        sequence, request = last.sequence, generation.request
        del self._open[sequence]
        self._progress.finished(sequence.num_prompt_tokens, sequence.num_completion_tokens)
        self._outputs[generation.place] = RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[self._completion(generation, last)],
            num_cached_tokens=sequence.num_cached_tokens,
        )

    def _completion(self, generation: _Generation, last: SequenceOutput) -> CompletionOutput:
        sequence, params = last.sequence, generation.request.params
        token_ids = sequence.completion_token_ids
        ended_by = token_ids.pop() if last.num_hidden_tokens else None
        text = generation.text
        if text is None and self._detokenizer is not None:
            text = self._text(self._detokenizer, params)
            text.push(token_ids)
        stop = text.stop if text is not None else None
        completion = CompletionOutput(
            text="" if text is None else str(text),
            token_ids=token_ids,
            finish_reason="error" if last.finish_reason is None else _REASONS[last.finish_reason],
            stop_reason=stop or (ended_by if ended_by in params.stop_token_ids else None),
            error=None if last.error is None else str(last.error),
        )
        if params.logprobs is not None:
            completion.logprobs = [
                self._candidates(*entry) for entry in zip(token_ids, generation.logprobs, strict=False)
            ]
            completion.cumulative_logprob = sum(entry.logprob for entry in generation.logprobs)
        return completion

    def _text(self, detokenizer: Detokenizer, params: SamplingParams) -> CompletionText:
        return detokenizer.text(params.stop_strings, skip_special_tokens=params.skip_special_tokens)

    def _candidates(self, chosen: int, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The best alternatives, best first, and the chosen token wherever it stands."""
        found = {
            token_id: Logprob(logprob, rank, self._token(token_id))
            for rank, (token_id, logprob) in enumerate(entry.top, 1)
        }
        if chosen not in found:
            found[chosen] = Logprob(entry.logprob, None, self._token(chosen))
        return found

    def _token(self, token_id: int) -> str | None:
        return None if self._detokenizer is None else self._detokenizer.token(token_id)


_REASONS: dict[InferenceFinishReason, Finish] = {
    InferenceFinishReason.Stop: "stop",
    InferenceFinishReason.Length: "length",
    InferenceFinishReason.ContentFilter: "stop",
}
