"""Which runner a model gets, and that torch stays out where it does not compute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.runner.cpu_runner import CpuRunner
from engine.runner.load import load_runner
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import open_model
from tests.engine.runner.kernels.building import require_compiler
from tests.engine.runner.small_models import make_reference, save_directory, save_gguf

ROOT = Path(__file__).parents[3]
SETTINGS = {"device": "cpu", "kv_cache_mib": 4, "num_threads": 1}
GENERATE = """
import sys
from engine import LLM, SamplingParams
with LLM(sys.argv[1], kv_cache_mib=8, num_threads=1) as llm:
    params = SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, logprobs=2, logit_bias={5: 1.0}, ignore_eos=True)
    (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
print(len(output.outputs[0].token_ids), *(name for name in ("torch", "transformers", "cv2") if name in sys.modules))
"""


@pytest.mark.parametrize("stored_as", ["gguf", "safetensors"])
def test_a_model_on_the_cpu_kernels_is_loaded_computed_and_sampled_without_torch(
    tmp_path: Path, stored_as: str
) -> None:
    require_compiler()
    reference = make_reference(kind="qwen2", hidden_size=128, intermediate_size=192, num_attention_heads=4)
    path = (
        save_gguf(reference, tmp_path / "m.gguf", "Q8_0")
        if stored_as == "gguf"
        else save_directory(reference, tmp_path)
    )
    command = [sys.executable, "-c", GENERATE, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.stdout == "4\n", done.stderr[-2000:]


def test_the_kernels_compute_what_they_can_and_torch_the_rest(tmp_path: Path) -> None:
    require_compiler()
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    kinds = [load_runner(files, EngineConfig(**SETTINGS, cpu_kernels=kernels)) for kernels in ("auto", "off")]
    assert [type(runner) for runner in kinds] == [CpuRunner, ModelRunner]


def test_a_choice_that_only_a_gpu_has_is_refused_on_the_kernels_too(tmp_path: Path) -> None:
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    with pytest.raises(ModelLoadError, match="--attention kernel"):
        load_runner(files, EngineConfig(**SETTINGS, attention="kernel"))
