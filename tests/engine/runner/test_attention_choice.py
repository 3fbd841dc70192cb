"""Who computes attention: what is installed, what was asked for, what proves itself, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.entrypoints.assembly import engine_config
from engine.entrypoints.options import ServerOptions
from engine.runner import attention_choice, flashinfer_attention
from engine.runner.attention_choice import Wanted, check_choice, open_attention
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kv_shape import KVShape
from engine.runner.load import load_runner
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import open_model
from tests.engine.runner import fake_flashinfer
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.small_models import make_reference, save_directory

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TRYING = "attention: trying flashinfer, which compiles kernels that it has not kept from an earlier start"


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 4096)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`open_attention` as on a GPU, where the proofs run on the CPU."""
    monkeypatch.setattr(KernelAttention, "__init__", _on_cpu(KernelAttention))
    monkeypatch.setattr(FlashInferAttention, "__init__", _on_cpu(FlashInferAttention))
    proof = attention_choice.attends_alike
    monkeypatch.setattr(
        attention_choice,
        "attends_alike",
        lambda paged, wanted: proof(paged, Wanted(wanted.shape, wanted.group, wanted.block_size, CPU)),
    )

    def choose(choice: str, launcher: Any, lines: list[str], **shape: Any) -> Any:
        numbers = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 64, "dtype": torch.bfloat16} | shape
        return open_attention(choice, launcher, Wanted(KVShape(**numbers), 3, 16, GPU), lines.append)

    return choose


def _on_cpu(kind: type) -> Callable[..., None]:
    made = kind.__init__

    def make(self: Any, *arguments: Any) -> None:
        made(self, *arguments[:-1], CPU)

    return make


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)


@pytest.fixture
def shim(libraries: Path) -> Shim:
    require_cpp_compiler()
    return Shim(libraries, threads=128)


def test_without_flashinfer_the_kernel_is_used_and_nobody_is_bothered(on_gpu: Any, shim: Shim) -> None:
    lines: list[str] = []
    assert isinstance(on_gpu("auto", shim, lines), KernelAttention)
    assert lines == ["attention: decodes by the kernel, prefills by SDPA"]


@pytest.mark.usefixtures("installed")
def test_flashinfer_is_used_where_it_is_installed_unless_something_else_was_asked_for(on_gpu: Any, shim: Shim) -> None:
    lines: list[str] = []
    assert isinstance(on_gpu("auto", shim, lines), FlashInferAttention)
    assert isinstance(on_gpu("flashinfer", None, lines), FlashInferAttention)
    assert isinstance(on_gpu("kernel", shim, lines), KernelAttention)
    assert on_gpu("sdpa", shim, lines) is None
    assert lines == [
        TRYING,
        "attention: flashinfer 0.7.4",
        TRYING,
        "attention: flashinfer 0.7.4",
        "attention: decodes by the kernel, prefills by SDPA",
        "attention: SDPA over gathered blocks",
    ]


@pytest.mark.usefixtures("installed")
def test_a_library_that_does_not_prove_itself_is_named_and_the_kernel_used(
    on_gpu: Any, shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(fake_flashinfer._Wrapper, "_one", lambda self, q, keys, values, causal: q)
    assert isinstance(on_gpu("auto", shim, lines), KernelAttention)
    with pytest.raises(ModelLoadError, match=r"^--attention flashinfer: flashinfer is not used, as the results differ"):
        on_gpu("flashinfer", shim, lines)
    reason = "flashinfer is not used, as the results differ from torch's"
    assert lines == [TRYING, f"attention: decodes by the kernel, prefills by SDPA; {reason}", TRYING]


def test_what_was_asked_for_and_cannot_be_used_is_refused_by_name(on_gpu: Any, shim: Shim) -> None:
    for choice, launcher, shape, message in (
        ("flashinfer", shim, {}, r"--attention flashinfer: flashinfer is not installed.*pip install flashinfer-python"),
        ("kernel", shim, {"head_dim": 100}, r"--attention kernel: the kernel does not know heads of 100"),
        ("kernel", None, {}, r"--attention kernel: the GPU kernels cannot be used here"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            on_gpu(choice, launcher, [], **shape)


@pytest.mark.usefixtures("installed")
def test_latent_vectors_are_left_to_the_kernel_which_proves_itself_on_decodes(on_gpu: Any, shim: Shim) -> None:
    lines: list[str] = []
    shape = {"num_kv_heads": 1, "head_dim": 80, "values_in_keys": 64}
    assert isinstance(on_gpu("auto", shim, lines, **shape), KernelAttention)
    assert lines[-1] == (
        "attention: decodes by the kernel for latent vectors, prefills by SDPA; "
        "flashinfer is not used for compressed attention"
    )
    assert {kernel for kernel, _, _ in shim.launched} == {"attend_parts", "combine_parts"}


def test_without_either_blocks_are_gathered_and_the_line_says_why(on_gpu: Any) -> None:
    lines: list[str] = []
    assert on_gpu("auto", None, lines) is None
    assert lines == ["attention: SDPA over gathered blocks; the GPU kernels cannot be used here"]


@pytest.mark.parametrize("choice", ["kernel", "flashinfer", "sdpa"])
def test_on_the_cpu_there_is_no_choice(choice: str) -> None:
    with pytest.raises(ModelLoadError, match=f"--attention {choice}: there is a choice on an NVIDIA GPU alone"):
        check_choice(choice, CPU)
    check_choice("auto", CPU)
    assert open_attention("auto", None, Wanted(KVShape(1, 1, 64, torch.bfloat16), 1, 16, CPU), print) is None


def test_the_program_refuses_a_choice_on_the_cpu_by_name(tmp_path: Path) -> None:
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    with pytest.raises(ModelLoadError, match=r"^--attention kernel: there is a choice on an NVIDIA GPU alone"):
        load_runner(files, EngineConfig(device="cpu", attention="kernel", kv_cache_mib=4))


def test_the_programs_options_reach_the_engine() -> None:
    config = engine_config(ServerOptions(attention="sdpa", enforce_eager=True), 100)
    assert (config.attention, config.enforce_eager) == ("sdpa", True)
