"""Token decoding: characters are never cut, special tokens always are."""

from collections.abc import Callable, Mapping

import pytest

from recipe.stream.decoder import StreamDecoder
from recipe.stream.logprobs import single_text
from recipe.stream.segment import PLAIN, SPECIAL, Segment

NI, HAO = "你".encode(), "好".encode()


class ByteTokenizer:
    """IDs 0 to 255 are bytes, 300 is a word, 303 an added token; there are no others."""

    added_spellings: Mapping[int, str] = {303: "</think>"}

    @property
    def token_bytes(self) -> Callable[[int], bytes]:
        return self._bytes

    def _bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return {300: b" word", 303: b"</think>"}.get(token_id, b"")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture
def decoder() -> StreamDecoder:
    return StreamDecoder(ByteTokenizer())


def seen(segments: list[Segment]) -> list[tuple[str, int, int]]:
    return [(segment.text, segment.origin, segment.token_count) for segment in segments]


def test_a_chunk_is_one_segment(decoder: StreamDecoder) -> None:
    assert seen(decoder.decode([97, 300], None)) == [("a word", PLAIN, 2)]


def test_a_character_waits_for_all_its_bytes(decoder: StreamDecoder) -> None:
    assert decoder.decode([NI[0]], None) == []
    assert decoder.decode([NI[1]], None) == []
    assert seen(decoder.decode([NI[2]], None)) == [("你", PLAIN, 3)]


def test_text_before_an_unfinished_character_waits_with_it(decoder: StreamDecoder) -> None:
    assert decoder.decode([97, NI[0]], None) == []
    assert seen(decoder.decode([NI[1], NI[2], *HAO], None)) == [("a你好", PLAIN, 7)]


def test_a_special_token_is_a_segment_of_its_own(decoder: StreamDecoder) -> None:
    assert seen(decoder.decode([97, 303, 98], None)) == [
        ("a", PLAIN, 1),
        ("</think>", SPECIAL, 1),
        ("b", PLAIN, 1),
    ]


def test_the_spelling_of_a_special_token_in_plain_tokens_stays_plain(decoder: StreamDecoder) -> None:
    assert seen(decoder.decode(list(b"</think>"), None)) == [("</think>", PLAIN, 8)]


def test_an_unfinished_character_before_a_special_token_is_replaced(decoder: StreamDecoder) -> None:
    assert seen(decoder.decode([97, NI[0], 303], None)) == [("a\ufffd", PLAIN, 2), ("</think>", SPECIAL, 1)]


def test_invalid_utf8_is_replaced_and_never_raises(decoder: StreamDecoder) -> None:
    assert decoder.decode([0xFF], None) == []
    assert seen(decoder.decode([97], None)) == [("\ufffda", PLAIN, 2)]
    assert seen(decoder.decode([0xED, 0xA0, 0x80, 97], None)) == [("\ufffd\ufffd\ufffda", PLAIN, 4)]


def test_an_unknown_token_is_no_text_but_is_counted(decoder: StreamDecoder) -> None:
    assert decoder.decode([99_999], None) == []
    assert seen(decoder.decode([97], None)) == [("a", PLAIN, 2)]


def test_log_probabilities_come_with_the_segment_of_their_tokens(decoder: StreamDecoder) -> None:
    assert decoder.decode([NI[0]], [(-0.5, [])]) == []
    (segment,) = decoder.decode([NI[1], NI[2]], [(-1.0, [(300, -2.0)]), (-1.5, [])])
    assert segment.logprobs == (
        '{"token":"\\\\xe4","logprob":-0.5,"bytes":[228],"top_logprobs":[]}'
        ',{"token":"\\\\xbd","logprob":-1.0,"bytes":[189],"top_logprobs":'
        '[{"token":" word","logprob":-2.0,"bytes":[32,119,111,114,100]}]}'
        ',{"token":"\\\\xa0","logprob":-1.5,"bytes":[160],"top_logprobs":[]}'
    )


def test_log_probabilities_of_only_some_tokens_are_left_out(decoder: StreamDecoder) -> None:
    decoder.decode([NI[0]], [(-0.5, [])])
    (segment,) = decoder.decode([NI[1], NI[2]], None)
    assert segment.logprobs is None


def test_log_probabilities_for_another_number_of_tokens_are_refused(decoder: StreamDecoder) -> None:
    with pytest.raises(ValueError, match="invalid log probabilities: 1 log probabilities for 2 token IDs"):
        decoder.decode([97, 98], [(-0.5, [])])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.1, "-0.1"),
        (-123456.789, "-123456.79"),
        (-1e-9, "-1e-9"),
        (1e-6, "0.000001"),
        (1e12, "1000000000000.0"),
        (1e13, "1e+13"),
        (-0.0, "-0.0"),
        (16777216.0, "16777216.0"),
        (1e-45, "1e-45"),
        (float("-inf"), "null"),
        (float("nan"), "null"),
        (1e39, "null"),
    ],
)
def test_numbers_are_spelled_in_single_precision(value: float, text: str) -> None:
    assert single_text(value) == text
