"""The two commands: what they decide from the machine they find."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NVIDIA_SMI = "#!/bin/sh\necho '| NVIDIA-SMI 999.1   Driver Version: 999.1   CUDA Version: {version}  |'\n"


def run_shell(command: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{path}:/usr/bin:/bin"}
    script = f"source scripts/venv.sh; {command}"
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_machine_without_a_driver_gets_the_cpu_build(tmp_path: Path) -> None:
    assert run_shell("PATH=$PATH detect_build", tmp_path).stdout.strip() in ("cpu", "cuda12", "cuda13")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert run_shell("detect_build", tmp_path).stdout.strip() == "cpu"


@pytest.mark.parametrize(("version", "build"), [("12.4", "cuda12"), ("13.0", "cuda13"), ("14.1", "cuda13")])
def test_a_driver_names_the_build_it_can_run(tmp_path: Path, version: str, build: str) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI.format(version=version))
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert run_shell("detect_build", tmp_path).stdout.strip() == build


def test_a_torch_that_the_driver_cannot_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    refused = run_shell("say_build cuda12 cuda13", tmp_path)
    assert refused.returncode == 1 and "TORCH_INDEX_URL" in refused.stderr
    assert run_shell("say_build cuda13 cuda12", tmp_path).returncode == 0
    assert "larger" in run_shell("say_build cpu cuda13", tmp_path).stdout
