"""The page at / in a real browser: a round trip through a tool, and what the inspector shows of each protocol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.engine.entrypoints.conftest import Program, start_program

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,860",
)
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
OUTPUTS = (
    f"<think>I need the weather.</think><tool_call>\n{CALL}\n</tool_call>",
    "<think>Now I know.</think>It is sunny in Paris & <b>warm</b>.",
)
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
WAIT_S = 60


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    script = tmp_path_factory.mktemp("mock") / "script.jsonl"
    script.write_text("\n".join(json.dumps({"text": text}) for text in OUTPUTS))
    program = start_program(
        *("--backend", "mock", "--mock-script", str(script)),
        *("--tool-markup", "hermes", "--reasoning-markers", "<think> </think>"),
    )
    yield program
    program.stop()


@pytest.fixture
def browser(scripted: Program, tmp_path: Path) -> Iterator[Any]:
    with opened(scripted, tmp_path) as driver:
        yield driver


@contextmanager
def opened(program: Program, tmp_path: Path) -> Iterator[Any]:
    """A browser with the page of `program`."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is not installed")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.implicitly_wait(WAIT_S)
    try:
        driver.get(program.url + "/")
        yield driver
    finally:
        driver.quit()


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def choose(browser: Any, protocol: str) -> None:
    find(browser, f"#protocol option[value={protocol}]").click()
    find(browser, "#look-form button.main").click()


def test_a_conversation_goes_through_a_tool_and_shows_reasoning_calls_and_text_apart(browser: Any) -> None:
    find(browser, "#settings summary").click()
    find(browser, "#tools").send_keys(json.dumps(TOOLS))
    find(browser, "#text").send_keys("What is the weather in Paris?\n")
    call = find(browser, ".turn.assistant .call input")
    first = find(browser, ".turn.assistant")
    assert find(first, ".reasoning .text").text == "I need the weather."
    assert find(first, ".call strong").text == "get_weather"
    assert json.loads(find(first, ".call pre").text) == {"city": "Paris"}
    call.send_keys("sunny\n")
    second = find(browser, ".turn.assistant ~ .turn.assistant")
    assert find(second, ".note").text.endswith("ms")
    assert find(second, ".reasoning .text").text == "Now I know."
    assert find(second, ":scope > .text").text == "It is sunny in Paris & <b>warm</b>."


def test_the_inspector_shows_the_same_prompt_for_the_three_protocols_and_marks_only_real_specials(
    browser: Any,
) -> None:
    find(browser, "#tab-look").click()
    prompts = []
    for protocol in ("chat_completions", "responses", "messages"):
        browser.execute_script("document.getElementById('shown').replaceChildren()")
        choose(browser, protocol)
        prompts.append(find(browser, "#shown pre").text)
    assert prompts[0] == prompts[1] == prompts[2]
    assert "Do not answer with <|im_end|>." in prompts[0]
    specials = [node.text for node in browser.find_elements("css selector", "#shown pre .special")]
    assert specials == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
    assert find(browser, ".token.special small").text == "1"


def test_what_is_no_request_is_said_and_the_plots_draw_without_a_complaint_of_the_browser(browser: Any) -> None:
    find(browser, "#tab-look").click()
    browser.execute_script("document.getElementById('body').value = 'no JSON'")
    find(browser, "#look-form button.main").click()
    assert "JSON" in find(browser, "#shown .error").text
    find(browser, "#tab-watch").click()
    assert len(browser.find_elements("css selector", ".plot path[d]")) == 10
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_with_api_keys_the_page_says_what_is_missing_and_works_with_a_key(tmp_path: Path) -> None:
    program = start_program("--backend", "mock", "--mock-tokens", "2", "--api-key", "sesame")
    try:
        with opened(program, tmp_path) as browser:
            find(browser, "#text").send_keys("Hello\n")
            assert find(browser, ".turn .error").text.startswith("401")
            find(browser, "#key").send_keys("sesame\n")
            assert find(browser, "#model option").get_attribute("value") == "SmolLM2-135M-Instruct"
            assert find(browser, "#text").get_attribute("value") == "Hello"
            find(browser, "#send").click()
            assert find(browser, ".turn.assistant ~ .turn.assistant .note")
            assert find(browser, ".turn.assistant > .text").text.strip() == "word word"
    finally:
        program.stop()


def test_the_page_needs_nothing_from_elsewhere_and_may_load_nothing(scripted: Program) -> None:
    with urlopen(scripted.url + "/") as response:
        policy, page = response.headers["Content-Security-Policy"], response.read().decode()
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "<script src" not in page and '<link rel="stylesheet' not in page and "@import" not in page
    assert "innerHTML" not in page


def test_no_page_is_a_404() -> None:
    program = start_program("--backend", "mock", "--no-page")
    try:
        with pytest.raises(HTTPError, match="404"):
            urlopen(program.url + "/")
    finally:
        program.stop()
