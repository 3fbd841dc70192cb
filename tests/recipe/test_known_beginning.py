"""Known beginnings of bodies: found again as far as they are the same, and a body is judged as if none were known."""

import json
import random
from typing import Any

import deepseek_recipe
import pytest

from recipe.protocol import body as body_module
from recipe.protocol.body import BodyDecoder
from recipe.protocol.chat_completions.convert import ChatCompletionRequest
from recipe.protocol.chat_completions.schema import ChatCompletionBody
from recipe.protocol.known_beginning import MIN_BYTES, KnownBeginnings

FILLING = 'a "quoted" \\ path\n' * (MIN_BYTES // 16)


def messages(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{index} {FILLING if index == 0 else ''}"} for index in range(number)]


def text_of(items: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "DeepSeek-V4-Pro", "messages": items, **fields}).encode()


def nested(levels: int, inner: str) -> str:
    return "[" * levels + inner + "]" * levels


def test_a_longer_conversation_is_known_up_to_the_last_three_messages_of_the_shorter_one() -> None:
    known = KnownBeginnings()
    known.add(text_of(messages(6)))
    longer = text_of(messages(8), stream=True)
    assert longer[known.length(longer) :].startswith(b'"role": "user", "content": "3 "}')


def test_the_last_messages_may_change() -> None:
    known = KnownBeginnings()
    known.add(text_of([*messages(3), *({"role": "user", "content": [{"cache_control": {}}]},) * 3]))
    assert known.length(text_of(messages(9))) > MIN_BYTES


def test_a_text_that_begins_otherwise_is_unknown() -> None:
    known = KnownBeginnings()
    known.add(text_of(messages(6)))
    assert known.length(text_of(messages(6)).replace(b"quoted", b"Quoted", 1)) == 0


@pytest.mark.parametrize("text", [b"", b'{"role"', text_of([{"role": "user", "content": "a"}] * 4), text_of(FILLING)])
def test_short_texts_and_texts_without_messages_are_not_kept(text: bytes) -> None:
    known = KnownBeginnings()
    known.add(text)
    assert known.length(text) == 0


def test_what_came_longest_ago_is_forgotten_first() -> None:
    texts = [text_of([{"role": "system", "content": str(index)}, *messages(6)]) for index in range(4)]
    known = KnownBeginnings(3 * len(texts[0]))
    for text in texts:
        known.add(text)
    assert [known.length(text) > 0 for text in texts] == [False, True, True, True]


def test_the_next_turn_takes_the_place_of_the_last() -> None:
    known = KnownBeginnings(2 * len(text_of(messages(20))))
    known.add(text_of([{"role": "system", "content": "another"}, *messages(6)]))
    for number in range(6, 20):
        known.add(text_of(messages(number)))
    assert known.length(text_of([{"role": "system", "content": "another"}, *messages(6)])) > 0


TAILS = [
    "",
    '"x": -0',
    '"x": "-0"',
    '"x": 1e999',
    '"x": 123456789012345678901234567890',
    '"seed": -0',
    '"top_logprobs": 1.0',
    '"x": ' + nested(126, "1"),
    '"x": ' + nested(127, "1"),
    '"x": "' + "[" * 200 + '"',
    '"x": tru',
    '"x": "\x01"',
]


@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_a_known_beginning_is_judged_as_by_the_reference(tail: str) -> None:
    warm = text_of(messages(6))
    assert outcome(ChatCompletionRequest, warm) == "decodes"
    text = warm[:-1] + (f", {tail}" if tail else "").encode() + b"}"
    assert body_module._known.length(text) > MIN_BYTES
    assert outcome(ChatCompletionRequest, text) == outcome(deepseek_recipe.ChatCompletionRequest, text)


@pytest.mark.parametrize(("outer", "inner"), [(100, 20), (100, 24), (100, 26), (3, 121), (3, 123), (120, 0)])
def test_levels_that_a_known_beginning_leaves_open_count(outer: int, inner: int) -> None:
    decoder = BodyDecoder(ChatCompletionBody)
    last = ",".join(['{"role": "user"}'] * 3)

    def text(levels: int) -> bytes:
        unknown = nested(outer, f"{json.dumps(FILLING)},{last},{nested(levels, '1')}")
        return f'{{"x": {unknown}, "model": "m", "messages": []}}'.encode()

    assert decoder.decode(text(0)).model == "m"
    assert body_module._known.length(text(inner)) > MIN_BYTES
    if 1 + outer + inner <= 127:
        assert decoder.decode(text(inner)).model == "m"
    else:
        with pytest.raises(ValueError, match="recursion limit exceeded"):
            decoder.decode(text(inner))


def test_random_conversations_are_judged_alike_with_and_without_known_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pick = random.Random(7)
    pieces = [
        "-0",
        "1e400",
        "9" * 20,
        '{"role": 1}',
        '{"type": [[]]}',
        '"{\\"role\\""',
        '"\\\\"',
        '"[{"',
        "[{}]",
        "2.5",
    ]
    weights = [1, 1, 1, *[6] * 7]
    known, unknown = KnownBeginnings(), KnownBeginnings(0)
    decoder = BodyDecoder(ChatCompletionBody)
    met_known = 0
    for _ in range(300):
        items = [json.dumps(FILLING), *pick.choices(pieces, weights=weights, k=8)]
        for number in range(5, len(items) + 1):
            extra = ",".join(items[:number])
            text = f'{{"x": [{extra}], "model": "m", "messages": []}}'.encode()
            met_known += known.length(text) > 0
            results = []
            for table in (known, unknown):
                monkeypatch.setattr(body_module, "_known", table)
                results.append(decoded(decoder, text))
            assert results[0] == results[1], text
    assert met_known > 100


def decoded(decoder: BodyDecoder[Any], text: bytes) -> Any:
    """What a body decodes to, and whether it was found plain, or the error."""
    try:
        return decoder.decode(text), body_module._is_plain(text)
    except ValueError as error:
        return str(error)


def outcome(request: Any, text: bytes) -> str:
    """Whether a body decodes, or the kind of its error."""
    try:
        request(text)
    except ValueError as error:
        return str(error).partition(":")[0]
    return "decodes"
