"""The server inside another asyncio program: started and stopped again and again, it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
from pathlib import Path

import pytest
from aiohttp import ClientSession

from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import ServerOptions

OPTIONS = ServerOptions(backend="mock", port=0, workers=1, mock_tokens=3)
BODY = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "hi"}]}
NUM_STARTS = 20


async def serve_once() -> None:
    async with create_server(OPTIONS) as server, ClientSession(server.address) as client:
        async with client.post("/v1/chat/completions", json=BODY) as response:
            assert (await response.json())["choices"][0]["message"]["content"].startswith("word")
        async with client.post("/v1/chat/completions", json={**BODY, "stream": True}) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")


def held() -> dict[str, int]:
    """What the process holds: descriptors, threads beside the loop's own pool, tasks and child processes."""
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        "tasks": len(asyncio.all_tasks()),
        "processes": len(multiprocessing.active_children()),
    }


@pytest.mark.slow
async def test_twenty_starts_in_one_program_leave_no_descriptor_thread_task_or_process() -> None:
    await serve_once()
    before = held()
    for _ in range(NUM_STARTS):
        await serve_once()
    assert held() == before


async def test_two_servers_run_beside_each_other() -> None:
    async with create_server(OPTIONS) as first, create_server(OPTIONS) as second:
        assert first.address != second.address
        async with ClientSession() as client:
            for server in (first, second):
                async with client.get(f"{server.address}/ready") as response:
                    assert response.status == 200


async def test_a_failing_start_leaves_nothing_either() -> None:
    before = held()
    for _ in range(3):
        try:
            async with create_server(ServerOptions(backend="mock", uds="/nowhere/socket", workers=1)):
                raise AssertionError("it started")
        except ValueError as error:
            assert "/nowhere/socket" in str(error)
    assert held() == before
