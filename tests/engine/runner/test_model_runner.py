"""The runner as the core sees it: phases told, bitmasks, sampling settings through a real forward pass, the end."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.core.runner import OutOfMemoryError, Runner
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner import model_runner
from engine.runner.device import available_memory, resolve_device, resolve_dtype
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.model_files import ModelFiles, ModelLoadError, open_model
from tests.engine.runner.driving import GREEDY, Driver, load, make_sequence
from tests.engine.runner.small_models import make_reference, save_directory

PROMPT = [5, 80, 33, 4, 90]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(str(save_directory(make_reference(), tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def runner(files: ModelFiles) -> ModelRunner:
    return load(files, kv_cache_mib=4)


def test_it_is_what_the_core_asks_for(runner: ModelRunner) -> None:
    described: Runner = runner
    assert (described.block_size, described.vocab_size, described.max_model_len) == (16, 160, 256)
    assert described.num_blocks == 4 * 2**20 // (2 * 3 * 16 * 2 * 8 * 4)


def test_loading_tells_each_phase_in_one_line(files: ModelFiles) -> None:
    lines: list[str] = []
    ModelRunner.load(files, EngineConfig(device="cpu", dtype="float32", kv_cache_mib=4, num_threads=1), lines.append)
    assert [line.split(":")[0] for line in lines] == ["memory", "weights", "warm-up"]
    assert "float32 on the CPU, threads: 1," in lines[1]


def test_a_bitmask_limits_its_row_and_an_empty_one_gives_none(runner: ModelRunner) -> None:
    driver = Driver(runner)
    sequences = [driver.add(make_sequence(PROMPT)) for _ in range(3)]
    (unmasked,) = driver.step((sequences[0], 5))
    mask = np.full((3, 5), -1, np.int32)
    mask[1], mask[2] = 0, 0
    mask[1, 3] = 1 << 7  # token 103
    batch = SchedulerOutput([ScheduledSequence(sequence, 0, 5, True) for sequence in sequences])
    sequences[0].token_ids.pop()
    for sequence, block in zip(sequences, range(3), strict=True):
        sequence.block_table = [block]
    sampled = runner.read(runner.sample(runner.launch(batch), mask))
    assert [token.token_id for token in sampled] == [unmasked.token_id, 103, None]


def test_a_batch_that_samples_nothing_yields_nothing(runner: ModelRunner) -> None:
    driver = Driver(runner)
    for params in (GREEDY, SamplingParams(temperature=1.0)):
        sequence = driver.add(make_sequence(PROMPT, params))
        assert driver.step((sequence, 3)) == []
        assert len(driver.step((sequence, 2))) == 1


def test_logprobs_agree_with_the_logits(runner: ModelRunner) -> None:
    driver = Driver(runner)
    plain, asking = (driver.add(make_sequence(PROMPT, SamplingParams(temperature=0, logprobs=n))) for n in (None, 3))
    wanted = driver.logits((plain, 5))[0].log_softmax(-1).topk(3)
    (token,) = driver.step((asking, 5))
    assert token.logprobs is not None
    assert token.logprobs.top == [
        (int(token_id), pytest.approx(float(value), abs=1e-4))
        for token_id, value in zip(wanted.indices, wanted.values, strict=True)
    ]
    assert token.logprobs.logprob == token.logprobs.top[0][1]


def test_a_closed_runner_computes_nothing_and_may_be_closed_again(files: ModelFiles) -> None:
    runner = load(files, kv_cache_mib=4)
    runner.close()
    runner.close()
    sequence = make_sequence(PROMPT)
    sequence.block_table = [0]
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(SchedulerOutput([ScheduledSequence(sequence, 0, 5, True)]))


@pytest.mark.parametrize(("part", "method"), [("_model", "forward"), ("_sampler", "sample")])
def test_without_memory_a_step_lets_go_of_all_that_it_had_allocated(
    runner: ModelRunner, part: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def fail(*arguments: Any) -> None:
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nGPU 0 has ...")

    monkeypatch.setattr(getattr(runner, part), method, fail)
    sequence = Driver(runner).add(make_sequence(PROMPT))
    sequence.block_table = [0]
    batch = SchedulerOutput([ScheduledSequence(sequence, 0, 5, True)])
    with pytest.raises(OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 2.00 GiB$"):
        runner.sample(runner.launch(batch), None)
    assert [reference() for reference in held] == [None]


def test_a_device_without_the_memory_to_load_names_what_to_lower(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB\nGPU 0 has ...")

    monkeypatch.setattr(model_runner, "KVCache", fail)
    with pytest.raises(ModelLoadError, match=r"^CUDA out of memory. Tried to allocate 9.00 GiB: use a smaller model"):
        load(files, kv_cache_mib=4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_the_cpu() -> None:
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ModelLoadError, match="torch sees no NVIDIA GPU"):
        resolve_device("cuda")


def test_settings_of_device_and_dtype_resolve() -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype("float16", cpu) is torch.float16
    assert resolve_dtype("auto", cpu) in (torch.bfloat16, torch.float32)
    assert 0 < available_memory(cpu) < 2**50


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_gives_the_logits_of_the_cpu(files: ModelFiles, runner: ModelRunner) -> None:
    results = []
    for driver in (Driver(runner), Driver(load(files, device="cuda", kv_cache_mib=4))):
        sequences = [driver.add(make_sequence(PROMPT * length)) for length in (20, 3)]
        driver.logits(*((sequence, len(sequence.token_ids) - 1) for sequence in sequences))
        results.append(driver.logits(*((sequence, 1) for sequence in sequences)).cpu())
    assert torch.allclose(*results, atol=1e-2)


def test_float16_computes_on_the_cpu(tmp_path: Path) -> None:
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    logits = [
        (driver := Driver(load(files, dtype=dtype, kv_cache_mib=4))).logits((driver.add(make_sequence(PROMPT)), 5))
        for dtype in ("float16", "float32")
    ]
    assert torch.allclose(*logits, atol=0.05)
