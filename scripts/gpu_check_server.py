"""Starts server.py on a small model of random weights and times a few streams: the last item of gpu_check.py."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_STREAMS, _TOKENS, _START_S = 10, 64, 60


def measure(device: str, shape: dict[str, Any]) -> str:
    """Medians over streams: time to the first token, mean time between tokens. `OSError` when no server starts."""
    with tempfile.TemporaryDirectory() as folder:
        _save(Path(folder), shape)
        port = _free_port()
        command = [sys.executable, str(Path(__file__).parent.parent / "server.py"), "--model", folder]
        command += ["--device", device, "--port", str(port), "--kv-cache-mib", "256", "--served-model-name", "check"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _wait(server, port)
            _stream(port)  # the first one pays for what is made once
            streams = [_stream(port) for _ in range(_STREAMS)]
        finally:
            server.terminate()
            server.wait(20)
    firsts = sorted(times[0] for times in streams)
    gaps = sorted((times[-1] - times[0]) / (len(times) - 1) for times in streams)
    return f"first token {firsts[len(firsts) // 2] * 1e3:.1f} ms, between tokens {gaps[len(gaps) // 2] * 1e3:.2f} ms"


def _save(folder: Path, shape: dict[str, Any]) -> None:
    """What `--model` is given: config, weights, tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    numbers = {key: value for key, value in shape.items() if key != "architectures"}
    LlamaForCausalLM(LlamaConfig(**numbers)).to(torch.bfloat16).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rest = [f"word{number}" for number in range(shape["vocab_size"] - len(alphabet) - 1)]
    tokens = [*alphabet, *rest, "<|end|>"]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings = {"eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(server: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            lines = (server.stderr.read() if server.stderr else "").strip().splitlines()
            raise OSError(f"server.py ended: {lines[-1] if lines else server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise OSError(f"server.py was not ready within {_START_S} s")


def _stream(port: int) -> list[float]:
    """Seconds from the request to each chunk with text."""
    body = {
        "model": "check",
        "messages": [{"role": "user", "content": "Tell me a story. " * 8}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"server.py answered {response.status}: {response.read(200)!r}")
    times = [time.perf_counter() - started for line in response if b'"content"' in line]
    if len(times) < 2:
        raise RuntimeError(f"server.py streamed {len(times)} chunks with text")
    return times
