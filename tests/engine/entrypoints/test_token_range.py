"""Token IDs that the model does not have are the client's mistake: a 400 that names the field, and the engine lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import ServerOptions
from tests.engine.runner.small_models import make_reference, save_directory

TOO_LARGE = 2**31 - 1
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_id_outside_the_vocabulary_is_a_400_and_the_next_request_is_served(
    tmp_path: Path, stream: bool
) -> None:
    options = ServerOptions(
        model=str(save_directory(make_reference(), tmp_path)), served_model_name=["m"],
        port=0, workers=1, device="cpu", kv_cache_mib=4, threads=1, warmup="none",
    )  # fmt: skip
    wrong = {
        "stop_token_ids": ("/v1/chat/completions", {**CHAT, "stop_token_ids": [TOO_LARGE]}),
        "logit_bias": ("/v1/chat/completions", {**CHAT, "logit_bias": {str(TOO_LARGE): 1}}),
        "prompt": ("/v1/completions", {"model": "m", "prompt": [1, TOO_LARGE], "max_tokens": 2}),
    }
    async with create_server(options) as server, aiohttp.ClientSession() as session:
        for word, (path, body) in wrong.items():
            async with session.post(server.address + path, json={**body, "stream": stream}) as answer:
                text = await answer.text()
                assert answer.status == 400 and word in text, text
        async with session.post(server.address + "/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 200
        assert server.desk.admission.num_open == 0
