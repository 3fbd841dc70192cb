"""Loading: what it takes beside the weights themselves, and what it shows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import load
from tests.engine.runner.small_models import make_reference, save_directory, save_gguf

MIB = 2**20
MEASURE = """
import json, sys, threading, time
from pathlib import Path
import gguf.quants, numpy, torch
from engine.runner.models.registry import architecture_of
from engine.runner.weights.model_files import open_model

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.0005)

torch.set_num_threads(1)
torch.zeros(2**20).to(torch.bfloat16)
for name in sys.argv[1:]:
    files = open_model(name)
    tensors = files.open_tensors()
    before = peak = anonymous()
    done = False
    watcher = threading.Thread(target=watch)
    watcher.start()
    kind = architecture_of(files.config)
    model = kind.load(files.config, tensors, device=torch.device("cpu"), dtype=torch.float16, max_positions=64)
    done = True
    watcher.join()
    weights = kind.sizes(files.config, torch.float16).num_parameters * 2
    print(json.dumps([peak - before, weights]))
    del model, tensors
"""


def test_loading_takes_the_weights_and_one_tensor_more(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 8, "head_dim": 32}
    dense = make_reference(intermediate_size=24_000, **sizes)
    experts = {"num_experts": 128, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    sparse = make_reference(kind="qwen3_moe", **{**sizes, **experts})
    one_tensor = {
        str(save_directory(dense, tmp_path / "dense")): 24_000 * 256 * 4,  # as stored
        str(save_directory(sparse, tmp_path / "sparse")): 256 * 256 * 4,
        str(save_gguf(dense, tmp_path / "dense.gguf", "Q8_0")): 24_000 * 256 * 4,  # dequantised
        str(save_gguf(sparse, tmp_path / "sparse.gguf", "Q8_0")): 256 * 256 * 4,
    }
    program = [sys.executable, "-c", MEASURE, *one_tensor]
    gives_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(program, check=True, capture_output=True, text=True, env=gives_back)
    for line, (path, tensor) in zip(done.stdout.splitlines(), one_tensor.items(), strict=True):
        taken, weights = json.loads(line)
        assert taken < weights + tensor + 6 * MIB, path
        assert weights > 30 * MIB


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shows"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_drawn_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shows: bool
) -> None:
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    monkeypatch.setattr("sys.stderr", stream)
    load(files, kv_cache_mib=4)
    assert ("weights:   0%" in stream.getvalue()) is shows
    assert bool(stream.getvalue()) is shows
