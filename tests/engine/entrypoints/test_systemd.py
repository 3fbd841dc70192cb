"""systemd hears when the program is ready and when it stops; without systemd nothing is said."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.entrypoints.systemd import notify
from tests.engine.entrypoints.conftest import ROOT


def listener(address: str | bytes) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(address)
    channel.settimeout(60)
    return channel


def test_the_program_says_ready_when_it_listens_and_stopping_when_it_is_told_to_end(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    command = [sys.executable, "server.py", "--backend", "mock", "--uds", str(tmp_path / "http")]
    environment = {**os.environ, "NOTIFY_SOCKET": address}
    with listener(address) as channel:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        first = channel.recv(1000).decode()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "http"))
        process.send_signal(signal.SIGTERM)
        second = channel.recv(1000).decode()
        assert process.wait(60) == 0
    assert first == f"READY=1\nSTATUS=serving on unix:{tmp_path / 'http'}"
    assert second == "STOPPING=1"


def test_abstract_sockets_are_known_and_their_absence_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"server-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with listener(f"\0{name}") as channel:
        notify("READY=1")
        assert channel.recv(1000) == b"READY=1"
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
