"""Engines of the offline door: how they are made, what they refuse, what they print, and how they end."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.backend import EngineDeadError
from engine.config import ConfigError
from engine.core.sequence import Sequence
from engine.entrypoints import llm as llm_module
from engine.entrypoints.options import OptionError
from engine.entrypoints.statistics import Statistics
from engine.runner.cpu_runner import CpuRunner
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.errors import ModelLoadError
from tests.engine.entrypoints.small_llm import GREEDY, PROMPTS, SETTINGS, generate, save_model
from tests.engine.runner.small_models import make_reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_reference(), tmp_path_factory.mktemp("model"))


def test_when_memory_runs_out_requests_wait_and_lose_nothing(folder: Path) -> None:
    prompts = [[index + 3, 5, index + 4] for index in range(60)]
    params = SamplingParams(max_tokens=70, **GREEDY)
    with LLM(folder, **{**SETTINGS, "kv_cache_mib": 1, "reserved_tokens": 1}) as small:
        squeezed = generate(small, prompts, params)
        assert small._live_core().stats().preemptions > 0
    with LLM(folder, **SETTINGS) as large:
        ample = generate(large, prompts, params)
    assert [output.outputs for output in squeezed] == [output.outputs for output in ample]


def test_a_preempted_request_can_be_given_up_and_says_so_alone(folder: Path) -> None:
    params = SamplingParams(max_tokens=70, **GREEDY)
    with LLM(folder, **{**SETTINGS, "kv_cache_mib": 1, "reserved_tokens": 1}, stop_preempted_request=True) as small:
        completions = [output.outputs[0] for output in generate(small, [[index + 3] for index in range(60)], params)]
    ends = [completion.finish_reason for completion in completions]
    assert ends.count("error") > 0 and ends.count("length") > 0
    assert all(("ran out of blocks" in (c.error or "")) == (c.finish_reason == "error") for c in completions)


def test_equal_seeds_give_equal_runs(folder: Path) -> None:
    def run(**settings: Any) -> list[list[int]]:
        with LLM(folder, **SETTINGS, **settings) as llm:
            outputs = generate(llm, PROMPTS, SamplingParams(max_tokens=8, temperature=3.0, ignore_eos=True))
            return [output.outputs[0].token_ids for output in outputs]

    assert run() == run(seed=0) != run(seed=1)


def test_a_failing_device_is_the_engines_death_now_and_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pending: Any) -> Any:
        raise RuntimeError("the device fell over")

    with LLM(folder, **SETTINGS) as llm:
        monkeypatch.setattr(llm._live_core().runner, "read", fail)
        with pytest.raises(EngineDeadError, match="the device fell over"):
            generate(llm, [7])
        with pytest.raises(EngineDeadError):
            generate(llm, [7])


def test_a_closed_engine_says_so_and_may_be_closed_again(folder: Path) -> None:
    llm = LLM(folder, **SETTINGS)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        generate(llm, [7])


def test_many_runs_and_many_engines_in_one_process_leave_nothing_behind(folder: Path) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(thing) in (Sequence, LLM, CpuRunner, ModelRunner) for thing in gc.get_objects())

    before = alive()
    for _ in range(3):
        with LLM(folder, **SETTINGS) as llm:
            for _ in range(10):
                generate(llm, PROMPTS, SamplingParams(max_tokens=2))
        del llm
    assert alive() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trust_remote_code": True}, "trust_remote_code=True is refused.*chat_template"),
        ({"expert_parallel_size": 2}, "expert_parallel_size must be 1.*Given: 2.*use vLLM or SGLang"),
        ({"tensor_parallel": 2}, "no engine argument 'tensor_parallel'.*max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"gpu_memory_utilization": 2.0}, "gpu_memory_utilization"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(folder: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(folder, **arguments)


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^kv_cache_mib 900000 does not fit"):
        LLM(folder, **{**SETTINGS, "kv_cache_mib": 900_000})


def test_a_model_without_a_chat_template_generates_and_says_what_a_chat_needs(tmp_path: Path) -> None:
    save_model(make_reference(), tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    talk = [{"role": "user", "content": "ab"}]
    with LLM(tmp_path, **SETTINGS) as llm:
        assert generate(llm, "ab")[0].outputs
        with pytest.raises(OptionError, match="no chat template; give one with chat_template FILE"):
            llm.chat(talk, use_tqdm=False)
    with LLM(tmp_path, chat_template=str(tmp_path / "mine.jinja"), **SETTINGS) as llm:
        (answer,) = llm.chat(talk, use_tqdm=False)
        assert llm.get_tokenizer().inner.decode(answer.prompt_token_ids) == "ab!"


def test_the_plan_is_printed_and_a_bar_counts_prompts_unless_it_is_not_wanted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with LLM(folder, **SETTINGS) as llm:
        assert "memory: weights" in capfd.readouterr().err
        llm.generate(PROMPTS, SamplingParams(max_tokens=2))
        shown = capfd.readouterr().err
        assert "4/4" in shown and "tok/s" in shown
        generate(llm, PROMPTS)
        assert capfd.readouterr().err == ""


def test_statistics_are_off_unless_they_are_asked_for(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "Statistics", partial(Statistics, interval_s=0.0))
    for settings, shown in (({}, False), ({"disable_log_stats": True}, False), ({"disable_log_stats": False}, True)):
        with LLM(folder, **SETTINGS, **settings) as llm:
            capfd.readouterr()
            generate(llm, PROMPTS, SamplingParams(max_tokens=3))
            assert ("running 4, waiting 0" in capfd.readouterr().err) == shown


def test_tokenizers_may_use_all_cores_unless_the_caller_has_said_otherwise(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said, expected in ((None, "true"), ("false", "false")):
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        if said is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", said)
        LLM(folder, **SETTINGS).close()
        assert os.environ["TOKENIZERS_PARALLELISM"] == expected


def test_an_offline_run_has_large_batches_whole_prompts_and_gives_up_no_sequence(folder: Path) -> None:
    with LLM(folder, **SETTINGS) as llm:
        config = llm._live_core().scheduler._config
    assert (config.max_num_seqs, config.max_prefill_chunk_tokens) == (256, None)
    assert config.stop_preempted_request is False
