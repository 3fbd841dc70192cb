"""Image URLs through the started server: what the origin says decides the status, and nobody else waits for it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.engine.entrypoints.conftest import Program
from tests.engine.entrypoints.deepseek_directory import write_v41
from tests.engine.entrypoints.test_protocol_sdks import ANSWER, PNG, started

SLOW_S = 3.0


class Origin(BaseHTTPRequestHandler):
    """Answers by path: /ok.png, /404.png, /503.png, /text.png, /slow.png."""

    def do_GET(self) -> None:
        name = self.path.strip("/").split(".")[0]
        if name == "slow":
            time.sleep(SLOW_S)
        status = int(name) if name.isdigit() else 200
        body = b"<html>no image</html>" if name == "text" else PNG
        self.send_response(status)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = started(write_v41(tmp_path_factory.mktemp("images")), ANSWER, "--allow-private-images")
    yield program
    program.stop()


def ask(program: Program, content: Any) -> tuple[int, Any]:
    body = {"model": "deepseek", "messages": [{"role": "user", "content": content}]}
    try:
        with urlopen(Request(program.url + "/v1/chat/completions", json.dumps(body).encode()), timeout=60) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def image(url: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    ("name", "status"), [("ok", 200), ("404", 400), ("403", 400), ("503", 500), ("500", 500), ("text", 400)]
)
def test_the_status_says_whose_failure_an_image_is(looking: Program, origin: str, name: str, status: int) -> None:
    got, answer = ask(looking, image(f"{origin}/{name}.png"))
    assert got == status, answer
    if status != 200:
        assert "image[0]" in answer["error"]["message"] and "messages[0]" in answer["error"]["message"]


def test_a_slow_origin_holds_up_nothing_but_its_own_request(looking: Program, origin: str) -> None:
    finished: list[float] = []
    begun = time.monotonic()

    def look() -> None:
        ask(looking, image(f"{origin}/slow.png"))
        finished.append(time.monotonic() - begun)

    thread = threading.Thread(target=look)
    thread.start()
    time.sleep(0.2)
    for _ in range(3):
        assert ask(looking, "no image")[0] == 200
    assert time.monotonic() - begun < SLOW_S and not finished
    thread.join()
    assert finished[0] >= SLOW_S


def test_nothing_of_an_image_is_logged_or_told(looking: Program) -> None:
    secret = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"secret-pixels" * 20).decode()
    status, answer = ask(looking, image(f"data:image/png;base64,{secret}"))
    assert status == 400
    told = json.dumps(answer) + "\n".join(looking.lines)
    assert secret[:40] not in told and secret[-40:] not in told
