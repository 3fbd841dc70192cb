"""API keys: who may ask. Only hashes are kept, and every comparison takes the same time.

`--api-key` names one key, or several when repeated. `--api-keys` names a TOML file:

    [[keys]]
    name = "alice"              # in logs and metrics
    sha256 = "9f86d08188…"      # printf %s "$KEY" | sha256sum
    priority = 0                # a lower one runs first
    max_requests = 8            # under way at a time, 0 for no limit
    requests_per_minute = 60    # 0 for no limit
"""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.entrypoints.errors import ApiError
from engine.entrypoints.options import OptionError

_DIGEST_CHARS = 64
_LIMITS = ("max_requests", "requests_per_minute")
_FIELD_TYPES: dict[str, type] = {"name": str, "sha256": str, "priority": int, **dict.fromkeys(_LIMITS, int)}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client that may ask. `digest` is the SHA-256 of its secret; limits of 0 are none."""

    name: str
    digest: bytes = field(repr=False)
    priority: int = 0
    max_requests: int = 0
    requests_per_minute: int = 0


class KeyRing:
    """The keys that open this server. An empty ring is a server without authentication."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        names = [key.name for key in keys]
        if len(set(names)) < len(names):
            raise OptionError("the API keys must have different names")
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request, None without authentication; raises a 401 `ApiError` for a missing or unknown one."""
        if not self._keys:
            return None
        secret = _presented(headers)
        if secret is None:
            raise ApiError(401, "this server wants an API key: Authorization: Bearer KEY, or x-api-key: KEY")
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:  # to the end, wherever it is found
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise ApiError(401, "the API key is not known to this server", code="invalid_api_key")
        return found


def load_keys(secrets: Sequence[str], path: str | None) -> KeyRing:
    """The ring of `--api-key` and `--api-keys`; raises `OptionError` saying what is wrong where."""
    if any(not secret.strip() for secret in secrets):
        raise OptionError("--api-key must not be empty")
    keys = [
        ApiKey("key" if number == 1 else f"key-{number}", hashlib.sha256(secret.encode()).digest())
        for number, secret in enumerate(secrets, 1)
    ]
    if path is not None:
        keys += _read_file(path)
    return KeyRing(keys)


def _presented(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None


def _read_file(path: str) -> list[ApiKey]:
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--api-keys {path}: {error}") from None
    entries = document.get("keys")
    if not isinstance(entries, list) or not entries or document.keys() != {"keys"}:
        raise OptionError(f"--api-keys {path}: it must hold [[keys]] tables and nothing else")
    return [_key(entry, f"--api-keys {path}: key {number}") for number, entry in enumerate(entries, 1)]


def _key(entry: Any, where: str) -> ApiKey:
    if not isinstance(entry, dict) or not {"name", "sha256"} <= entry.keys():
        raise OptionError(f"{where} needs a name and a sha256")
    for name, value in entry.items():
        if name not in _FIELD_TYPES:
            raise OptionError(f"{where} has no field {name!r}")
        is_negative = name in _LIMITS and isinstance(value, int) and value < 0
        if is_negative or type(value) is not _FIELD_TYPES[name]:
            raise OptionError(f"{where}: {name} has a wrong value: {value!r:.80}")
    if len(entry["sha256"]) != _DIGEST_CHARS:
        raise OptionError(f"{where}: sha256 must be {_DIGEST_CHARS} hexadecimal digits")
    try:
        digest = bytes.fromhex(entry.pop("sha256"))
    except ValueError:
        raise OptionError(f"{where}: sha256 must be {_DIGEST_CHARS} hexadecimal digits") from None
    return ApiKey(digest=digest, **entry)
