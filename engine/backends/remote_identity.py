"""What a remote engine says that it is, as a system fingerprint: its kind, its version and the model that it serves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec


class _Model(msgspec.Struct):
    id: str = ""
    root: str | None = None


class _Told(msgspec.Struct):
    """The fields of all kinds together: /version and /v1/models of vLLM and of this server, /server_info of SGLang."""

    version: str | None = None
    model_path: str | None = None
    data: list[_Model] = []


_DECODER = msgspec.json.Decoder(_Told)


def fingerprint(kind: str, answers: Iterable[bytes]) -> str | None:
    """`fp_` and ten hexadecimal digits of what the engine's `answers` tell; None if they tell nothing."""
    facts: list[Any] = []
    for answer in answers:
        try:
            told = _DECODER.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        facts += [fact for fact in (told.version, told.model_path) if fact]
        facts += sorted((model.id, model.root or "") for model in told.data)
    if not facts:
        return None
    return "fp_" + hashlib.sha256(msgspec.json.encode([kind, *facts])).hexdigest()[:10]
