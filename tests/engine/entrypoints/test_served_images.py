"""Image URLs through the started server: what the origin says decides the status, and nobody else waits for it."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import cv2
import numpy
import pytest

from recipe.request import IMAGE_SPECIAL_TOKEN_ID
from tests.engine.entrypoints.conftest import Program
from tests.engine.entrypoints.deepseek_directory import write_v41
from tests.engine.entrypoints.test_protocol_sdks import ANSWER, PNG, started
from tests.lived_time import HANG_S

slow_is_asked, slow_may_answer = threading.Event(), threading.Event()
LARGE = cv2.imencode(".png", numpy.zeros((600, 800, 3), numpy.uint8))[1].tobytes()


class Origin(BaseHTTPRequestHandler):
    """Answers by path: /ok.png, /large.png, /404.png, /503.png, /text.png, /slow.png."""

    def do_GET(self) -> None:
        name = self.path.strip("/").split(".")[0]
        if name == "slow":
            slow_is_asked.set()
            slow_may_answer.wait(2 * HANG_S)
        status = int(name) if name.isdigit() else 200
        body = {"text": b"<html>no image</html>", "large": LARGE}.get(name, PNG)
        self.send_response(status)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):  # who waited for a slow one has left
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
    program = started(
        write_v41(tmp_path_factory.mktemp("images")), ANSWER, "--allow-private-images", "--image-timeout-s", "100"
    )
    yield program
    program.stop()


def ask(program: Program, content: Any, path: str = "/v1/chat/completions", **fields: Any) -> tuple[int, Any]:
    body = {"model": "deepseek", "messages": [{"role": "user", "content": content}], **fields}
    try:
        with urlopen(Request(program.url + path, json.dumps(body).encode()), timeout=240) as response:
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
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(ask, looking, image(f"{origin}/slow.png"))
        try:
            assert slow_is_asked.wait(HANG_S)
            for _ in range(3):
                assert ask(looking, "no image")[0] == 200
            assert not slow.done()
        finally:
            slow_may_answer.set()
        assert slow.result()[0] == 200


def test_nothing_of_an_image_is_logged_or_told(looking: Program) -> None:
    secret = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"secret-pixels" * 20).decode()
    status, answer = ask(looking, image(f"data:image/png;base64,{secret}"))
    assert status == 400
    told = json.dumps(answer) + "\n".join(looking.lines)
    assert secret[:40] not in told and secret[-40:] not in told


def message_images(*sources: dict[str, str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "look"}, *({"type": "image", "source": source} for source in sources)]


def inline(data: bytes) -> dict[str, str]:
    return {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}


def tokens_of_a_generation(program: Program, content: Any) -> int:
    """What a generation says it has counted, asked for more than the context holds."""
    status, answer = ask(program, content, "/v1/messages", max_tokens=163840)
    assert status == 400
    return int(re.search(r"\((\d+) in the messages", answer["error"]["message"])[1])  # type: ignore[index]


def test_counted_tokens_have_images_at_the_size_that_a_generation_counts(looking: Program, origin: str) -> None:
    url = {"type": "url", "url": f"{origin}/large.png"}
    contents = [message_images(*sources) for sources in ((), (inline(PNG),), (inline(LARGE), url), (url,))]
    counts = [ask(looking, content, "/v1/messages/count_tokens")[1]["input_tokens"] for content in contents]
    assert counts == [tokens_of_a_generation(looking, content) for content in contents]
    text, small, two_large, large = counts
    assert large > small > text + 100
    assert two_large - text == 2 * (large - text)


@pytest.mark.parametrize(("name", "status"), [("404", 400), ("503", 500), ("text", 400)])
def test_an_image_that_cannot_be_counted_is_the_error_that_it_is_when_run(
    looking: Program, origin: str, name: str, status: int
) -> None:
    content = message_images({"type": "url", "url": f"{origin}/{name}.png"})
    counted = ask(looking, content, "/v1/messages/count_tokens")
    run = ask(looking, content, "/v1/messages", max_tokens=1)
    assert counted[0] == run[0] == status
    assert counted[1]["error"] == run[1]["error"]


def test_a_shown_prompt_has_a_token_for_each_image_and_counts_its_size(looking: Program, origin: str) -> None:
    url = f"{origin}/large.png"
    _, seen = ask(looking, image(url), "/tokenize")
    assert seen["tokens"].count(IMAGE_SPECIAL_TOKEN_ID) == 1
    _, counted = ask(looking, message_images({"type": "url", "url": url}), "/v1/messages/count_tokens")
    assert seen["count"] == counted["input_tokens"] > len(seen["tokens"])
    assert ask(looking, image(f"{origin}/404.png"), "/tokenize")[0] == 400


def test_an_image_takes_no_longer_to_count_than_it_may_to_run(origin: str, tmp_path: Path) -> None:
    slow_may_answer.clear()
    folder = write_v41(tmp_path / "model")
    program = started(folder, ANSWER, "--allow-private-images", "--image-timeout-s", "0.3")
    try:
        content = message_images({"type": "url", "url": f"{origin}/slow.png"})
        status, answer = ask(program, content, "/v1/messages/count_tokens")
        assert (status, answer["error"]["type"]) == (504, "timeout_error")
    finally:
        slow_may_answer.set()
        program.stop()
