"""Small models of every architecture on the CPU kernels: against torch in float32, and as part of the engine."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import ConfigError, EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.load import load_runner
from engine.runner.weights.model_files import ModelFiles, open_model
from tests.engine.fake_runner import make_request
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.kernels.building import require_compiler
from tests.engine.runner.small_models import make_reference, save_directory, save_gguf

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
ODD_SIZES: dict[str, Any] = {"hidden_size": 54, "intermediate_size": 83, "head_dim": 10}
KERNELS = {"dtype": "auto", "cpu_kernels": "auto", "kv_cache_mib": 8}
KINDS = ("llama", "mistral", "qwen2", "qwen3")


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    require_compiler()


def relative_error(files: ModelFiles) -> float:
    """Of the logits behind 90 tokens, against float32 on the same weights."""
    prompt = [Random(1).randrange(160) for _ in range(90)]
    found, wanted = (
        driver.logits((driver.add(make_sequence(prompt)), len(prompt)))[0]
        for driver in (Driver(load(files, **KERNELS)), Driver(load(files)))
    )
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("sizes", [SIZES, ODD_SIZES], ids=["even", "odd"])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_weights_give_the_logits_of_torch(kind: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    save_directory(make_reference(kind=kind, **sizes), tmp_path)
    assert relative_error(open_model(str(tmp_path))) < 0.03


def test_biases_everywhere_are_added(tmp_path: Path) -> None:
    save_directory(make_reference(attention_bias=True, mlp_bias=True, **SIZES), tmp_path)
    assert relative_error(open_model(str(tmp_path))) < 0.03


@pytest.mark.parametrize("storage", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_weights_give_the_logits_of_torch(storage: str, tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", storage)
    assert relative_error(open_model(str(path))) < 0.05


def test_the_start_lines_name_kernels_and_formats(tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")
    lines: list[str] = []
    load_runner(open_model(str(path)), EngineConfig(device="cpu", kv_cache_mib=8, num_threads=1), lines.append)
    assert [line.split(":")[0] for line in lines] == ["CPU kernels", "memory", "weights", "warm-up"]
    assert "in Q4_1 on the CPU" in lines[2]


@pytest.mark.parametrize("settings", [{"cpu_kernels": "off"}, {"dtype": "float32"}])
def test_torch_computes_where_kernels_are_off_or_another_format_is_asked_for(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")
    lines: list[str] = []
    load_runner(open_model(str(path)), EngineConfig(device="cpu", kv_cache_mib=8, **settings), lines.append)
    assert not [line for line in lines if "kernels" in line]


def test_blocks_that_hold_no_whole_runs_of_positions_are_left_to_torch(tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")
    lines: list[str] = []
    settings = EngineConfig(device="cpu", kv_cache_mib=8, num_threads=1, block_size=8)
    runner = load_runner(open_model(str(path)), settings, lines.append)
    assert "a block must hold a multiple of 16 tokens" in lines[0]
    assert len(Driver(runner).step((make_sequence([5, 6, 7]), 3))) == 1


def test_without_a_compiler_one_line_says_so_and_torch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RECIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")
    lines: list[str] = []
    runner = load_runner(open_model(str(path)), EngineConfig(device="cpu", kv_cache_mib=8), lines.append)
    assert lines[0] == "CPU kernels: there is no C compiler (cc, gcc or clang); computing with torch, which is slower"
    assert len(Driver(runner).step((make_sequence([5, 6, 7]), 3))) == 1


# 1,000 requests


def make_requests(count: int) -> list[Any]:
    """Prompts with few beginnings, so that prefixes are shared; some drawn, some greedy."""
    random = Random(7)
    beginnings = [[random.randrange(3, 160) for _ in range(random.randrange(8, 70))] for _ in range(12)]
    requests = []
    for index in range(count):
        prompt = random.choice(beginnings) + [random.randrange(3, 160) for _ in range(random.randrange(1, 12))]
        temperature = random.choice([0.0, 1.0])
        requests.append(
            make_request(f"r{index}", prompt, seed=index, max_tokens=random.randrange(1, 30), temperature=temperature)
        )
    return requests


def run_alone(core: EngineCore, request: Any) -> list[int]:
    sequence = core.add_request(request)
    while core.has_work:
        core.step()
    return sequence.completion_token_ids


def test_a_thousand_requests_in_any_mix_give_the_tokens_of_lone_runs(tmp_path: Path) -> None:
    """Joins and cancels at any step, few blocks: chunks, prefix hits and preemptions all happen, and change nothing."""
    path = save_gguf(make_reference(num_hidden_layers=2, **SIZES), tmp_path / "model.gguf", "Q4_1")
    files, random = open_model(str(path)), Random(3)
    settings = {"max_num_seqs": 12, "max_num_batched_tokens": 64, "max_prefill_chunk_tokens": 24, "reserved_tokens": 1}
    lone = EngineCore(load(files, **KERNELS), EngineConfig(enable_prefix_caching=False), files.eos_token_ids)
    runner = load(files, **KERNELS)
    runner.num_blocks = 24  # far fewer than twelve such sequences need
    mixed = EngineCore(runner, EngineConfig(**settings), files.eos_token_ids)
    requests, sequences = make_requests(1000), dict[str, Sequence]()
    cancelled = set[str]()
    for request in requests:
        sequences[request.request_id] = mixed.add_request(request)
        for _ in range(random.randrange(3)):
            mixed.step()
        if random.randrange(20) == 0:
            cancelled.add(request.request_id)
            mixed.cancel(sequences[request.request_id])
    while mixed.has_work:
        mixed.step()
    mixed.check_integrity()
    for request in requests:
        found = sequences[request.request_id].completion_token_ids
        if request.request_id not in cancelled:
            assert found == run_alone(lone, request)
    assert sum(sequence.num_preemptions for sequence in sequences.values()) > 20
    assert sum(sequence.num_cached_tokens > 0 for sequence in sequences.values()) > 200


def test_closing_frees_the_engine_and_its_threads(tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")

    def num_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    load(open_model(str(path)), **KERNELS).close()
    before = num_threads()
    runner = load(open_model(str(path)), **{**KERNELS, "num_threads": 5})
    assert num_threads() >= before + 4
    runner.close()
    assert num_threads() < before + 4
    with pytest.raises(RuntimeError, match="closed"):
        Driver(runner).step((make_sequence([1]), 1))
    torch.set_num_threads(1)


def test_greedy_requests_agree_with_a_sampler_of_any_kind(tmp_path: Path) -> None:
    """Logits belong to whoever asks: what one step's sampler writes into them is gone in the next."""
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q8_0")
    driver = Driver(load(open_model(str(path)), **KERNELS))
    plain = driver.add(make_sequence([5, 9, 44]))
    biased = driver.add(make_sequence([5, 9, 44], SamplingParams(temperature=0, logit_bias={7: 100.0})))
    tokens = driver.step((plain, 3), (biased, 3))
    assert tokens[1].token_id == 7 != tokens[0].token_id


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has nothing to be pinned to")
def test_pinned_threads_stay_on_cpus_of_their_own_the_calling_one_while_it_computes(tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")

    def places() -> dict[int, set[int]]:
        tasks = (int(path.name) for path in Path("/proc/self/task").iterdir())
        return {task: os.sched_getaffinity(task) for task in tasks}

    def compute(library: Any, seen: list[set[int]]) -> dict[int, set[int]]:
        """CPUs of the threads that were started; `seen` gets those of the calling one while it computes."""
        before = places()
        runner = load(open_model(str(path)), **{**KERNELS, "num_threads": 2, "pin_threads": True})
        started = {task: cpus for task, cpus in places().items() if task not in before}
        compute_step = runner._model._library.engine_step
        library.engine_step = lambda *given: (seen.append(os.sched_getaffinity(0)), compute_step(*given))
        library.engine_sample, runner._model._library = runner._model._library.engine_sample, library
        assert len(Driver(runner).step((make_sequence([5, 6, 7]), 3))) == 1
        runner.close()
        return started

    everywhere, seen = os.sched_getaffinity(0), list[set[int]]()
    started = compute(SimpleNamespace(), seen)
    assert os.sched_getaffinity(0) == everywhere
    assert [len(cpus) for cpus in seen] == [1]
    assert [cpus for cpus in started.values() if len(cpus) == 1 and cpus.isdisjoint(seen[0])]


def test_threads_are_pinned_on_the_kernels_alone(tmp_path: Path) -> None:
    path = save_gguf(make_reference(**SIZES), tmp_path / "model.gguf", "Q4_1")
    with pytest.raises(ConfigError, match="--pin-threads is for the compiled kernels"):
        load(open_model(str(path)), pin_threads=True)
