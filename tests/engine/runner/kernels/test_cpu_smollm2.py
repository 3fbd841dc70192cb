"""The embedded model on the CPU kernels against float32 on the same weights, dequantised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kv_cache import KVCache
from engine.runner.models.decoder import Decoder
from engine.runner.models.registry import architecture_of
from engine.runner.weights.model_files import ModelFiles, open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.kernels.building import require_compiler
from tests.engine.runner.test_smollm2_against_transformers import PROMPTS

CLEAR_MARGIN = 0.3  # logits: where float32 prefers a token by more, the kernels must too
TEXT = Path(__file__).parents[4] / "LICENSE"
NUM_TEXT_TOKENS, NUM_GREEDY_TOKENS, BLOCK_SIZE, CPU = 2000, 24, 16, torch.device("cpu")


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    require_compiler()
    return open_model(None)


@pytest.fixture(scope="module")
def driver(files: ModelFiles) -> Iterator[Driver]:
    runner = load(files, dtype="auto", cpu_kernels="auto", num_threads=1, kv_cache_mib=100)
    yield Driver(runner)
    runner.close()


class Reference:
    """The model in float32 on torch: the logits of every token of a text."""

    def __init__(self, files: ModelFiles) -> None:
        length = NUM_TEXT_TOKENS + BLOCK_SIZE
        tensors = files.open_tensors()
        kind = architecture_of(files.config)
        self._model: Decoder = kind.load(files.config, tensors, device=CPU, dtype=torch.float32, max_positions=length)
        self._cache = KVCache(self._model.kv_shape, length // BLOCK_SIZE, BLOCK_SIZE, CPU)
        self._builder = BatchBuilder(BLOCK_SIZE, self._model.group, torch.float32, CPU)

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Float32 `[tokens, V]`."""
        sequence = make_sequence(token_ids)
        sequence.block_table = list(range(-(-len(token_ids) // BLOCK_SIZE)))
        batch = self._builder.build(SchedulerOutput([ScheduledSequence(sequence, 0, len(token_ids), True)]))
        batch.sampling_rows = None
        return self._model.forward(batch, self._cache)


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> Reference:
    return Reference(files)


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return Tokenizer.from_str(files.tokenizer_json)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(turn.format(prompt), add_special_tokens=False).ids for prompt in PROMPTS]


def generate(driver: Driver, sequence: Sequence, num_tokens: int) -> Sequence:
    driver.add(sequence)
    for _ in range(num_tokens):
        driver.step((sequence, sequence.num_uncomputed_tokens))
    driver.release(sequence)
    return sequence


def test_logits_stay_within_five_percent_of_float32(
    driver: Driver, reference: Reference, prompts: list[list[int]]
) -> None:
    for prompt in prompts:
        sequence = driver.add(make_sequence(prompt))
        found, wanted = driver.logits((sequence, len(prompt)))[0], reference.logits(prompt)[-1]
        driver.release(sequence)
        assert float((found - wanted).norm() / wanted.norm()) < 0.05


def test_the_likelihood_of_a_text_stays_within_one_percent_of_float32(
    driver: Driver, reference: Reference, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False).ids[:NUM_TEXT_TOKENS]
    sequence = make_sequence(token_ids)
    sequence.block_table = list(range(-(-len(token_ids) // BLOCK_SIZE)))
    rows = [ScheduledSequence(sequence, start, 1, True) for start in range(len(token_ids) - 1)]
    found = torch.as_tensor(driver.runner.launch(SchedulerOutput(rows)).logits)
    following = torch.tensor(token_ids[1:])
    loss = float(torch.nn.functional.cross_entropy(found, following))
    wanted = float(torch.nn.functional.cross_entropy(reference.logits(token_ids)[:-1], following))
    assert len(token_ids) == NUM_TEXT_TOKENS
    assert abs(loss / wanted - 1) < 0.01


def test_greedy_tokens_are_those_of_float32_wherever_it_is_sure(
    driver: Driver, reference: Reference, prompts: list[list[int]]
) -> None:
    num_clear = 0
    for prompt in prompts:
        sequence = generate(driver, make_sequence(prompt), NUM_GREEDY_TOKENS)
        best = reference.logits(sequence.token_ids)[len(prompt) - 1 : -1].topk(2)
        clear = best.values[:, 0] - best.values[:, 1] > CLEAR_MARGIN
        tokens = torch.tensor(sequence.completion_token_ids)
        assert torch.equal(tokens[clear], best.indices[clear, 0])
        num_clear += int(clear.sum())
    assert num_clear > len(prompts) * NUM_GREEDY_TOKENS // 2


def test_a_prompt_gives_the_same_bits_alone_in_chunks_and_beside_others(
    driver: Driver, prompts: list[list[int]]
) -> None:
    sequences = [driver.add(make_sequence(prompt)) for prompt in prompts]
    together = driver.logits(*((sequence, len(sequence.token_ids)) for sequence in sequences))
    driver.release(*sequences)
    for row, prompt in enumerate(prompts):
        sequence = driver.add(make_sequence(prompt))
        for _ in range(len(prompt) // 7):
            driver.logits((sequence, 7))
        rest = sequence.num_uncomputed_tokens
        alone = driver.logits((sequence, rest)) if rest else None
        driver.release(sequence)
        assert alone is None or torch.equal(alone[0], together[row])
