"""The embedded model in float32 against transformers on the same weights, dequantised by an independent path.

Greedy tokens are compared up to the first near-tie: where the two best logits of the reference lie closer than
`NEAR_TIE`, rounding may decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache

import gguf
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.weights.model_files import ModelFiles, open_model
from tests.engine.runner.driving import Driver, load, make_sequence

pytestmark = pytest.mark.slow
NEAR_TIE = 1e-3
NUM_TOKENS = 64
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "List three prime numbers.",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into Spanish.",
    "def fibonacci(n):",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What is 17 plus 25?",
    "Why is the sky blue?",
    "Tell me a joke about computers.",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog does not care, and goes on sleeping in the sun.",
    "Name the planets of the solar system in order, starting from the sun, and say one thing about each of them.",
    "Wie heißt die Hauptstadt von Österreich?",
    "你好，你是谁？",
    "Write SQL that counts users by country.",
    "What does HTTP status 404 mean?",
    "Continue: Once upon a time",
    "How do I boil an egg? 🥚",
    "Is a tomato a fruit? Answer yes or no, then explain your answer at length, with examples from cooking and botany.",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads of two pools wait for each other on a machine that has other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_model(None)


@pytest.fixture(scope="module")
def driver(files: ModelFiles) -> Driver:
    return Driver(load(files, kv_cache_mib=400))


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> LlamaForCausalLM:
    """Read by the gguf package's own reader, Q and K rows put in order one by one."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(files.path).tensors}
    weights = {}
    for name in model.state_dict():
        tensor = stored[names.get_name(name.replace("lm_head", "model.embed_tokens"), (".weight",)) or name]
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if "q_proj" in name or "k_proj" in name:
            order = [head + 2 * i + half for head in range(0, len(weight), 64) for half in (0, 1) for i in range(32)]
            weight = weight[order]
        weights[name] = weight
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.fixture(scope="module")
def prompts(files: ModelFiles) -> list[list[int]]:
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(turn.format(prompt), add_special_tokens=False).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def best_two(reference: LlamaForCausalLM) -> Callable[[tuple[int, ...], int], torch.return_types.topk]:
    """The reference's two best tokens behind each of the completion's beginnings; computed once for equal tokens."""

    @cache
    @torch.no_grad()
    def compute(token_ids: tuple[int, ...], num_prompt_tokens: int) -> torch.return_types.topk:
        return reference(torch.tensor([token_ids])).logits[0, num_prompt_tokens - 1 : -1].topk(2)

    return compute


def check_greedy(best_two: Callable[[tuple[int, ...], int], torch.return_types.topk], sequence: Sequence) -> None:
    """Each completion token is the reference's best behind the same tokens, until a near-tie."""
    assert sequence.num_completion_tokens == NUM_TOKENS
    best = best_two(tuple(sequence.token_ids), sequence.num_prompt_tokens)
    for token, ids, values in zip(sequence.completion_token_ids, best.indices, best.values, strict=True):
        if values[0] - values[1] < NEAR_TIE:
            return
        assert token == int(ids[0])


def generate(driver: Driver, sequence: Sequence, num_tokens: int) -> Sequence:
    driver.add(sequence)
    for _ in range(num_tokens):
        driver.step((sequence, len(sequence.token_ids) - sequence.num_computed_tokens))
    driver.release(sequence)
    return sequence


def generate_together(driver: Driver, waiting: deque[Sequence], num_tokens: int) -> None:
    """At most 16 at a time, prompts in chunks of at most 16 tokens beside the decodes of the others."""
    running: list[Sequence] = []
    while waiting or running:
        while waiting and len(running) < 16:
            running.append(driver.add(waiting.popleft()))
        decodes = [sequence for sequence in running if sequence.num_uncomputed_tokens == 1]
        prefills = [sequence for sequence in running if sequence.num_uncomputed_tokens > 1][:3]
        driver.step(*((s, 1) for s in decodes), *((s, min(16, s.num_uncomputed_tokens)) for s in prefills))
        for sequence in [s for s in running if s.num_completion_tokens == num_tokens]:
            running.remove(sequence)
            driver.release(sequence)


def test_the_model_knows_the_capital_of_france(driver: Driver, files: ModelFiles) -> None:
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    text += "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    sequence = generate(driver, make_sequence(tokenizer.encode(text, add_special_tokens=False).ids), 8)
    assert sequence.completion_token_ids == [504, 3575, 282, 4649, 314, 7042, 30, 2]


def test_logits_equal_those_of_transformers(
    driver: Driver, reference: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    for prompt in prompts[10:14]:
        sequence = driver.add(make_sequence(prompt))
        with torch.no_grad():
            wanted = reference(torch.tensor([prompt])).logits[0, -1]
        assert float((driver.logits((sequence, len(prompt)))[0] - wanted).abs().max()) < 2e-3
        driver.release(sequence)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_greedy_alone_equals_transformers(
    driver: Driver, best_two: Callable[..., torch.return_types.topk], prompts: list[list[int]], index: int
) -> None:
    check_greedy(best_two, generate(driver, make_sequence(prompts[index]), NUM_TOKENS))


def test_greedy_in_a_mixed_batch_with_chunked_prefill_equals_transformers(
    driver: Driver, best_two: Callable[..., torch.return_types.topk], prompts: list[list[int]]
) -> None:
    sequences = [make_sequence(prompt) for prompt in prompts]
    generate_together(driver, deque(sequences), NUM_TOKENS)
    for sequence in sequences:
        check_greedy(best_two, sequence)


def test_seeded_draws_are_the_same_alone_and_in_a_batch(driver: Driver, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95)
    alone = [generate(driver, make_sequence(prompt, params, seed=99), 12).token_ids for prompt in prompts[:3]]
    together = [make_sequence(prompt, params, seed=99) for prompt in prompts[:8]]
    generate_together(driver, deque(together), 12)
    assert [sequence.token_ids for sequence in together[:3]] == alone
