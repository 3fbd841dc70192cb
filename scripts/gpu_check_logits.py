"""The check of gpu_check.py that compares logits with those of transformers, on the real widths of a model.

The first layers are enough: what differs between architectures is in them. In float32 the numbers must agree; in the
precision that is served, where kernels attend and compute experts, their direction must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.model_runner import ModelRunner
from scripts.gpu_check_models import SHAPES, RandomFiles
from scripts.gpu_check_place import Failed, Place, Skipped, make_sequence, prefill

LAYERS, TOKENS = 2, 50
_KINDS = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "DeepseekV2ForCausalLM": "deepseek_v2"}
_LARGEST_DIFFERENCE, _LEAST_COSINE = 2e-3, 0.98


@dataclass
class ModelTensors:
    """The weights of a model of transformers by the names that checkpoints have."""

    weights: dict[str, torch.Tensor]

    @property
    def names(self) -> set[str]:
        return set(self.weights)

    def load(self, name: str) -> torch.Tensor:
        return self.weights[name]

    def stored_blocks(self, name: str) -> None:
        return None


class ModelOfTransformers(RandomFiles):
    """A model of transformers, in place of files."""

    def __init__(self, config: dict[str, Any], device: torch.device, model: Any) -> None:
        super().__init__(config, device)
        self._tensors = ModelTensors(dict(_checkpoint_tensors(model)))

    def open_tensors(self) -> Any:
        return self._tensors


def check_logits(place: Place, name: str) -> str:
    """The logits of a prompt's last token, and of one decode behind it, against those of transformers."""
    place.release()
    config = SHAPES[name] | {"num_hidden_layers": min(LAYERS, SHAPES[name]["num_hidden_layers"])}
    reference = _reference(config, place.device)
    files = ModelOfTransformers(config, place.device, reference)
    random = torch.Generator().manual_seed(1)
    token_ids = torch.randint(0, config["vocab_size"], (TOKENS + 1,), generator=random).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids], device=place.device)).logits[0, -2:].float()
    del reference
    exact = (_logits(place, files, token_ids, "float32") - expected).abs().max()
    served = _logits(place, files, token_ids, "bfloat16")
    cosine = torch.nn.functional.cosine_similarity(served, expected).min()
    found = f"largest difference {float(exact):.6f} in float32, least cosine {float(cosine):.4f} in bfloat16"
    if not (exact < _LARGEST_DIFFERENCE and cosine > _LEAST_COSINE):
        raise Failed(found)
    return found


def _reference(config: dict[str, Any], device: torch.device) -> Any:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as problem:
        raise Skipped("transformers is not installed") from problem
    numbers = {key: value for key, value in config.items() if key != "architectures"}
    torch.manual_seed(1)
    with torch.device(str(device)):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(_KINDS[config["architectures"][0]], **numbers))
    return model.to(torch.float32).eval()


def _checkpoint_tensors(model: Any) -> Any:
    """Names and tensors, where the experts of a layer are stacked one by one."""
    for name, tensor in model.state_dict().items():
        layer, stacked, part = name.rpartition("experts.")
        if not stacked or part not in ("gate_up_proj", "down_proj"):
            yield name, tensor
            continue
        for index, expert in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True)
            for kind, weight in parts if part == "gate_up_proj" else [("down_proj", expert)]:
                yield f"{layer}experts.{index}.{kind}.weight", weight


def _logits(place: Place, files: Any, token_ids: list[int], dtype: str) -> torch.Tensor:
    """Ours of the last two tokens, float32 `[2, V]`: of a prefill, and of a decode."""
    settings = EngineConfig(
        device=place.device.type,
        dtype=dtype,
        cpu_kernels="off",
        kv_cache_mib=64,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_model_len=256,
    )
    runner = ModelRunner.load(files, settings)
    sequence = make_sequence(0, len(token_ids) - 1)
    sequence.token_ids = token_ids[:-1]
    first = _first_row(runner, prefill(runner, sequence))
    sequence.token_ids = token_ids
    decode = ScheduledSequence(sequence, len(token_ids) - 1, 1, True)
    sequence.block_table = list(range(-(-len(token_ids) // runner.block_size)))
    rows = torch.stack((first, _first_row(runner, SchedulerOutput([decode]))))
    runner.close()
    return rows


def _first_row(runner: ModelRunner, batch: SchedulerOutput) -> torch.Tensor:
    logits = runner.launch(batch).logits
    if logits is None:
        raise Failed("there are no logits")
    return logits[0].clone()
