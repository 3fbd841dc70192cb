"""API keys: which headers carry them, which files name them, and what is said to those without."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from engine.entrypoints.auth import KeyRing, load_keys
from engine.entrypoints.errors import ApiError
from engine.entrypoints.options import OptionError

DIGEST = hashlib.sha256(b"s3cret").hexdigest()


def keys_file(folder: Path, text: str) -> str:
    path = folder / "keys.toml"
    path.write_text(text)
    return str(path)


def test_without_keys_everybody_may_ask() -> None:
    assert KeyRing(()).identify({}) is None


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer one"}, {"Authorization": "bearer  one"}, {"x-api-key": "one"}]
)
def test_a_key_is_taken_from_either_header(headers: dict[str, str]) -> None:
    found = load_keys(["one", "two"], None).identify(headers)
    assert found is not None and found.name == "key"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer "}, {"Authorization": "Basic one"}, {"x-api-key": "on"}],
)
def test_a_missing_or_unknown_key_is_a_401(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        load_keys(["one"], None).identify(headers)
    assert refused.value.status == 401


def test_a_file_gives_each_key_its_name_priority_and_limits(tmp_path: Path) -> None:
    text = f'[[keys]]\nname = "alice"\nsha256 = "{DIGEST}"\npriority = -1\nmax_requests = 4\nrequests_per_minute = 9\n'
    found = load_keys([], keys_file(tmp_path, text)).identify({"x-api-key": "s3cret"})
    assert found is not None
    assert (found.name, found.priority, found.max_requests, found.requests_per_minute) == ("alice", -1, 4, 9)
    assert "s3cret" not in repr(found) and DIGEST[:8] not in repr(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "keys"),
        ("[[keys]]\nname = 'a'", "sha256"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST[1:]}'", "64"),
        (f"[[keys]]\nname = 'a'\nsha256 = 'g{DIGEST[1:]}'", "hexadecimal"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nmax_request = 4", "max_request"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\nmax_requests = -4", "max_requests"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\npriority = 'high'", "priority"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{DIGEST}'\n" * 2, "different names"),
        ("not toml", "keys.toml"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_what_is_wrong(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(OptionError, match=word):
        load_keys([], keys_file(tmp_path, text))


def test_a_file_that_is_not_there_and_an_empty_key_are_refused() -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml"):
        load_keys([], "nowhere.toml")
    with pytest.raises(OptionError, match="empty"):
        load_keys([" "], None)
