"""The command line: its help, its file, and one line for every mistake."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from engine.entrypoints.command_line import parse_options
from engine.entrypoints.options import ServerOptions
from tests.engine.entrypoints.conftest import ROOT

MAX_HELP_LINES = 110
HELP_WIDTH = 120


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that ends the program with 2."""
    with pytest.raises(SystemExit) as stopped:
        parse_options(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("server.py: ")
    return line


def test_the_help_fits_two_screens_and_says_every_option_with_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert len(text.splitlines()) <= MAX_HELP_LINES and max(map(len, text.splitlines())) <= HELP_WIDTH
    for item in fields(ServerOptions):
        flag = item.name.replace("_", "-")
        assert f"--{flag} " in text or f"--[no-]{flag}" in text, flag
    for shown in ("75 s", "96 MiB", "16 KiB", "no limit", "on", "the embedded SmolLM2-135M", "none, fast, full (fast"):
        assert f"{shown})" in text


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('port = 1\nmax_queued = 5\npage = false\napi_key = ["a"]\ntoken_gap_timeout_s = 3\n')
    options = parse_options(["--config", str(file), "--port", "2", "--api-key", "b", "--api-key", "c"])
    assert (options.port, options.max_queued, options.page) == (2, 5, False)
    assert options.api_key == ["b", "c"] and options.token_gap_timeout_s == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prot", "7"], ["--prot", "--help"]),
        (["--port", "x"], ["--port", "'x'"]),
        (["--port", "70000"], ["--port", "[0, 65535]"]),
        (["--max-queued", "-1"], ["--max-queued", ">= 0"]),
        (["--max-body-mib", "0"], ["--max-body-mib", ">= 1"]),
        (["--idle-timeout-s", "nan"], ["--idle-timeout-s", ">= 0"]),
        (["--warmup", "slow"], ["--warmup", "'full'"]),
        (["--config", "/nowhere.toml"], ["/nowhere.toml", "No such file"]),
        (["surplus"], ["surplus"]),
    ],
)
def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    line = mistake(capsys, *arguments)
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 'x'", ["port", "type"]),
        ("page = 1", ["page", "type"]),
        ("port = true", ["port", "type"]),
        ("api_key = [1]", ["api_key", "type"]),
        ("warmup = 'slow'", ["warmup", "none, fast, full"]),
        ("prot = 7", ["prot"]),
        ("config = 'x'", ["config"]),
        ("max_queued = -1", ["--max-queued", ">= 0"]),
        ("port = = 1", ["line 1"]),
    ],
)
def test_a_wrong_line_of_the_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text)
    line = mistake(capsys, "--config", str(file))
    assert all(word in line for word in words)


def ended(*arguments: str) -> tuple[int, str, list[str]]:
    """The program's exit code, its last line, and those before."""
    command = [sys.executable, "server.py", "--workers", "1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    *before, last = done.stderr.splitlines()
    return done.returncode, last, before


def test_what_cannot_be_served_ends_the_program_with_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\0\0\0")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 8}')
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    (folder / "model.safetensors").write_bytes(b"no header, but junk")
    cases = {tmp_path: "config.json", damaged: "damaged", folder: "damaged", tmp_path / "none": "there is no model"}
    for model, word in cases.items():
        code, last, before = ended("--port", "0", "--model", str(model))
        assert code == 2 and last.startswith("server.py: ") and word in last and not before


def test_a_taken_port_is_said_before_a_model_is_looked_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, last, before = ended("--port", port, "--model", "/nowhere")
    assert code == 2 and not before
    assert f"127.0.0.1:{port}" in last and "another --port" in last


def test_a_socket_path_that_cannot_be_is_one_line_behind_the_phases(tmp_path: Path) -> None:
    code, last, before = ended("--backend", "mock", "--uds", str(tmp_path / "none" / "s"))
    assert code == 2 and "another --uds" in last
    assert all(line.endswith(" s") for line in before)


def test_too_little_memory_for_one_sequence_is_one_line(tmp_path: Path) -> None:
    code, last, before = ended("--port", "0", "--kv-cache-mib", "1")
    assert code == 2 and "--kv-cache-mib" in last
    assert not [line for line in before if "CRITICAL" in line or "Traceback" in line]


def test_a_chat_template_that_is_no_template_ends_the_program_also_when_the_model_loads_longer(tmp_path: Path) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text("{{ messages")
    code, last, before = ended("--port", "0", "--chat-template", str(template), "--kv-cache-mib", "256")
    assert code == 2 and "the chat template is invalid in line 1" in last
    assert not [line for line in before if "Traceback" in line or "ready" in line]
