"""Phi-3 and Phi-4: a Llama with a window where config gives one; its files keep Q, K and V, and gate and up, in one."""

from __future__ import annotations

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.mistral import read

PHI3 = DecoderArchitecture(read)
