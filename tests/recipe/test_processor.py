"""The life of a stream: what opens, ends and breaks it, and what it costs."""

import gc
from typing import Any

import pytest

import recipe
from recipe import (
    InferenceChunk,
    InferenceFinishReason,
    MessagesChunkGenerator,
    ParsingOptions,
    PromptUsage,
    StreamProcessor,
    ThinkingInitialStage,
)
from tests.oracle.tokenizer_files import get_tokenizer
from tests.recipe.streamed import LENGTH, READY, STOP, Stream

OFF = {"type": "disabled"}


def processor(tokenizer: Any = None, **parsing: Any) -> StreamProcessor[Any]:
    return StreamProcessor(MessagesChunkGenerator("ID", "model", False), ParsingOptions(**parsing), tokenizer)


def test_the_ready_chunk_opens_the_response() -> None:
    (start,) = Stream("messages", thinking=OFF).push(READY)
    assert start["type"] == "message_start"


def test_any_other_first_chunk_opens_the_response_too() -> None:
    assert Stream("messages", thinking=OFF).push("")[0]["type"] == "message_start"
    assert Stream("messages", thinking=OFF).finish()[0]["type"] == "message_start"


def test_a_later_ready_chunk_is_ignored() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push("a")
    assert stream.push(READY) == []
    assert stream.push(STOP)[-1]["usage"]["prompt_tokens"] == 0


def test_a_prompt_usage_that_comes_with_the_end_replaces_the_first() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push_all([READY, "a"])
    usage = PromptUsage(prompt_tokens=20, prompt_cache_hit_tokens=16)
    (last,) = stream.push(InferenceChunk.finish(InferenceFinishReason.Stop, prompt_usage=usage))
    assert last["usage"]["prompt_tokens"] == 20
    assert last["usage"]["prompt_cache_miss_tokens"] == 4


def test_tokens_without_text_are_counted_by_the_finish_chunk_and_add_no_chunk() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push_all([READY, "a"])
    (last,) = stream.push(InferenceChunk.finish(InferenceFinishReason.Stop, token_count=1))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 2


def test_nothing_can_be_pushed_after_the_end() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push(STOP)
    assert stream.processor.finished
    for late in ("late", STOP, READY):
        with pytest.raises(RuntimeError, match="stream processor has finished"):
            stream.push(late)
    assert stream.finish() == []


def test_a_stop_string_ends_the_stream_at_once() -> None:
    stream = Stream("chat", thinking=OFF, stop="b")
    chunks = stream.push("abc")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert stream.processor.finished
    with pytest.raises(RuntimeError, match="stream processor has finished"):
        stream.push(LENGTH)


def test_a_closed_processor_can_do_nothing_more() -> None:
    closed = processor()
    closed.close()
    assert not closed.finished
    for use in (closed.finish, lambda: closed.push(STOP)):
        with pytest.raises(RuntimeError, match="stream processor is closed"):
            use()


def test_token_chunks_without_a_tokenizer_are_an_error_that_closes_the_stream() -> None:
    broken = processor()
    with pytest.raises(RuntimeError, match="token chunk received without a tokenizer"):
        broken.push(InferenceChunk.tokens([]))
    with pytest.raises(RuntimeError, match="stream processor is closed"):
        broken.push(STOP)


def test_log_probabilities_that_do_not_fit_are_an_error_that_closes_the_stream() -> None:
    broken = processor(get_tokenizer(recipe, "tiny"))
    with pytest.raises(RuntimeError, match="invalid log probabilities: 1 log probabilities for 2 token IDs"):
        broken.push(InferenceChunk.tokens([65, 66], [(-0.5, [])]))
    with pytest.raises(RuntimeError, match="stream processor is closed"):
        broken.finish()


def test_a_generator_serves_one_stream() -> None:
    generator = MessagesChunkGenerator("ID", "model", False)
    StreamProcessor(generator, ParsingOptions())
    with pytest.raises(RuntimeError, match="chunk generator has been consumed"):
        StreamProcessor(generator, ParsingOptions())


@pytest.mark.parametrize("arguments", [(1, ParsingOptions()), (None, 1), (None, ParsingOptions(), 1)])
def test_arguments_of_other_types_are_refused(arguments: tuple[Any, ...]) -> None:
    generator = arguments[0] or MessagesChunkGenerator("ID", "model", False)
    with pytest.raises(TypeError):
        StreamProcessor(generator, *arguments[1:])


def test_completion_tokens_are_those_of_the_chunks_that_were_handled() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push_all([[97, 98], [0xE4], InferenceChunk.text("x", 5)])
    assert stream.push(STOP)[-1]["usage"]["completion_tokens"] == 7  # the unfinished character is lost


def test_completion_tokens_saturate() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push_all([InferenceChunk.text("a", 2**32 - 2), InferenceChunk.text("b", 5)])
    assert stream.push(STOP)[-1]["usage"]["completion_tokens"] == 2**32 - 1


def test_reasoning_tokens_are_counted_by_encoding_the_reasoning_again() -> None:
    stream = Stream("chat")
    stream.push_all(["hel", "lo</think>x"])
    assert stream.push(STOP)[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_a_stop_after_a_tool_call_is_reported_as_tool_calls_and_other_reasons_win() -> None:
    reasons = {}
    for chunk in (STOP, LENGTH, None):
        stream = Stream("chat", ParsingOptions(starts_in_tool_calls=True), thinking=OFF)
        stream.push('invoke name="f"')
        last = stream.finish()[-1] if chunk is None else stream.push(chunk)[-1]
        reasons[chunk] = last["choices"][0]["finish_reason"]
    assert reasons == {STOP: "tool_calls", LENGTH: "length", None: "stop"}


def test_parsing_options_decide_the_stage_the_output_starts_in() -> None:
    parsing = ParsingOptions(thinking_initial_stage=ThinkingInitialStage.ReasoningStart)
    stream = Stream("messages", parsing, thinking=OFF)
    assert [event["type"] for event in stream.push("why")][-1] == "content_block_delta"
    assert stream.whole()["content"] == [{"type": "thinking", "thinking": "why", "signature": ""}]


@pytest.mark.parametrize("stage", [None, ThinkingInitialStage.ReasoningStart])
def test_a_closed_stream_leaves_nothing_to_the_garbage_collector(stage: ThinkingInitialStage | None) -> None:
    gc.collect()
    gc.disable()
    try:
        stream = processor(thinking_initial_stage=stage)
        stream.push(READY)
        stream.push(InferenceChunk.text("some text", 2))
        stream.close()
        del stream
        assert gc.collect() == 0
    finally:
        gc.enable()
