"""What the preparation workers do with text that is no conversation: prompts to be continued as they are.

Whatever is spelled in such a text is ordinary text; the one special token it can get is the BOS token, from the model.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import msgspec

from recipe.errors import ConversionError
from recipe.max_tokens import MaxTokens
from recipe.prepare import TOKEN_ID_BYTES, PreparedRequest, Preparer, RejectedRequest, worker_preparer
from recipe.prompt import Prompt, SpecialTokens
from recipe.protocol.completions.convert import DEFAULT_MAX_TOKENS, CompletionRequest, TextOrIds
from recipe.protocol.completions.generator import CompletionChunkGenerator, CompletionTally
from recipe.request import InferenceOptions
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage

_NO_MARKERS = SpecialTokens(thinking_start="", thinking_end="", dsml="")


def prepare_completion(body: bytes, response_id: str) -> list[PreparedRequest] | RejectedRequest:
    """One prepared request for each choice: those of the first prompt, then those of the second, and so on."""
    started = time.perf_counter()
    preparer = worker_preparer()
    try:
        request = CompletionRequest.from_body(body, preparer.config.options)
        inference = preparer.with_bad_words(request.inference_options)
        prompts = [_Prompt.of(preparer, prompt, request) for prompt in request.prompts]
        choices = _choices(preparer, request, inference, prompts, response_id)
    except ConversionError as error:
        return RejectedRequest(error.status_code, str(error))
    except ValueError as error:
        return RejectedRequest(400, str(error))
    for choice in choices:
        choice.prepare_s = time.perf_counter() - started
    return choices


class _Prompt(msgspec.Struct):
    """A prompt as tokens, and its text if that is to be repeated."""

    token_ids: bytes
    echo: str

    @classmethod
    def of(cls, preparer: Preparer, prompt: TextOrIds, request: CompletionRequest) -> _Prompt:
        if isinstance(prompt, str):
            plain = plain_prompt(preparer, prompt, adds_bos=request.adds_bos)
            token_ids = preparer.tokenizer.prompt_tokenizer.encode_packed(plain)
            if not token_ids:
                raise ConversionError("Invalid prompt: it is empty, and this model has no token that begins a text")
            return cls(token_ids, prompt if request.echo else "")
        return cls(array("I", prompt).tobytes(), text_of(preparer, prompt) if request.echo else "")


def plain_prompt(preparer: Preparer, text: str, *, adds_bos: bool) -> Prompt:
    """A text as a prompt: BOS if the model wants one, and the text as it is."""
    prompt = Prompt()
    if adds_bos:
        prompt.push_special(preparer.config.bos_token)
    prompt.push_text(text)
    return prompt


def text_of(preparer: Preparer, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones as they are spelled; what is no character shows as the replacement character."""
    return b"".join(map(preparer.tokenizer.token_bytes, token_ids)).decode(errors="replace")


def _choices(
    preparer: Preparer,
    request: CompletionRequest,
    inference: InferenceOptions,
    prompts: Sequence[_Prompt],
    response_id: str,
) -> list[PreparedRequest]:
    tally = CompletionTally(len(prompts) * inference.n)
    limit = MaxTokens(inference.max_tokens, DEFAULT_MAX_TOKENS, inference.min_tokens)
    choices = []
    for index in range(len(prompts) * inference.n):
        prompt = prompts[index // inference.n]
        generator = CompletionChunkGenerator(
            response_id,
            request.model,
            index,
            tally,
            echo=prompt.echo,
            counts_prompt=index % inference.n == 0,
            reports_usage=request.reports_usage,
        )
        num_tokens = len(prompt.token_ids) // TOKEN_ID_BYTES
        choices.append(
            PreparedRequest(
                token_ids=prompt.token_ids,
                model=request.model,
                stream=request.stream,
                max_tokens=limit.resolve(num_tokens, preparer.config.context_limit),
                inference_options=inference,
                parsing_options=_parsing(request),
                generator=generator,
            )
        )
    return choices


def _parsing(request: CompletionRequest) -> ParsingOptions:
    """Nothing but stop strings is looked for, and the text keeps the newlines it begins with."""
    return ParsingOptions.trusted(
        parse_tool_calls=False,
        thinking_initial_stage=ThinkingInitialStage.ContentContinuation,
        stop_sequences=request.stop_strings,
        special_tokens=_NO_MARKERS,
    )
