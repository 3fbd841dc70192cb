"""Every CUDA source compiles for every architecture that is supported, though no GPU is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from engine.runner.kernels import cuda_attention, cuda_experts, cuda_sampler
from engine.runner.kernels.cuda_sources import (
    APPLY_BITMASK,
    FOLDER,
    SAMPLE_ROWS,
    KernelSource,
    experts,
    latent_attention,
    paged_attention,
)
from tests.engine.runner.kernels import cubin

ARCHITECTURES = (80, 90, 100, 120)
REGISTERS_A_BLOCK, SHARED_BYTES_A_BLOCK = 65_536, 48 * 1024  # of all of them, without asking for more
THREADS = {"apply_bitmask": 1024, "sample_rows": 1024, "attend_parts": 128, "combine_parts": 128}
THREADS |= {"multiply_gated": 128, "multiply": 128}
SOURCES = [
    APPLY_BITMASK,
    SAMPLE_ROWS,
    paged_attention(128, 4, torch.bfloat16),
    paged_attention(64, 3, torch.float16),
    paged_attention(128, 16, torch.float16),
    paged_attention(96, 1, torch.bfloat16),
    latent_attention(512, 64, torch.bfloat16),
    latent_attention(512, 64, torch.float16),
    experts(torch.bfloat16),
    experts(torch.float16),
]


def named(source: KernelSource) -> str:
    return " ".join((source.file_name, *source.defines))


def test_every_source_is_compiled_here_for_the_threads_that_are_launched() -> None:
    assert {THREADS[kernel] for kernel in ("apply_bitmask", "sample_rows")} == {cuda_sampler._THREADS}
    assert {THREADS[kernel] for kernel in ("attend_parts", "combine_parts")} == {cuda_attention._THREADS}
    assert {THREADS[kernel] for kernel in ("multiply_gated", "multiply")} == {cuda_experts._THREADS}
    assert {source.file_name for source in SOURCES} == {path.name for path in FOLDER.glob("*.cu")}


def test_a_source_holds_each_header_once_and_no_include_is_left() -> None:
    for source in SOURCES:
        assert "#include" not in source.text
        assert source.text.count("struct Largest {") <= 1


@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_a_source_compiles_without_a_gpu_and_fits_into_a_block_of_every_architecture(source: KernelSource) -> None:
    nvrtc = pytest.importorskip("cupy", reason="cupy is not installed", exc_type=ImportError).cuda.nvrtc
    try:
        nvrtc.getVersion()
    except RuntimeError as problem:
        pytest.skip(f"the run-time compiler cannot be loaded: {str(problem).splitlines()[0]}")
    for architecture in ARCHITECTURES:
        program = nvrtc.createProgram(source.text, source.file_name, (), ())
        try:
            nvrtc.compileProgram(program, (*source.options, f"-arch=sm_{architecture}"))
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        image = nvrtc.getCUBIN(program)
        nvrtc.destroyProgram(program)
        found = cubin.registers(image)
        assert set(found) == set(source.kernels)
        for kernel, count in found.items():
            given = -(-count // 8) * 8  # registers are given by eights
            assert 0 < given * THREADS[kernel] <= REGISTERS_A_BLOCK, f"{kernel} on sm_{architecture}"
            assert cubin.shared_bytes(image, kernel) <= SHARED_BYTES_A_BLOCK


def test_the_sampler_and_attention_fit_into_the_registers_of_a_block(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    sources = (paged_attention(128, 4, torch.bfloat16), latent_attention(512, 64, torch.bfloat16))
    for source in (APPLY_BITMASK, SAMPLE_ROWS, *sources, experts(torch.bfloat16)):
        path = tmp_path / source.file_name
        path.write_text(source.text)
        command = [nvcc, "-cubin", "-arch=sm_90", "-Xptxas", "-v", *source.options, str(path), "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "spill" in done.stderr
        assert done.stderr.count(" 0 bytes spill stores, 0 bytes spill loads") == done.stderr.count("spill stores")
