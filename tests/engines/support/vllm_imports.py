"""The imports of `vllm serve` and of its EngineCore, for preloaded.py."""

import multiprocessing
from multiprocessing.context import BaseContext
from typing import Any

import vllm.distributed.nixl_utils
import vllm.entrypoints.cli.benchmark.main
import vllm.entrypoints.cli.serve
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.llama
import vllm.v1.engine.coordinator
import vllm.v1.engine.core
import vllm.v1.worker.cpu_model_runner
import vllm.v1.worker.cpu_worker
from vllm.entrypoints.cli.main import main

from tests.engines.support.sleeping_nixl import sitecustomize

__all__ = ["main", "sitecustomize", "start_processes_in", "vllm"]


def start_processes_in(context: BaseContext) -> None:
    """Make `spawn`, on which vLLM insists for all its processes, mean a given context of multiprocessing."""
    own = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return context if method == "spawn" else own(method)

    module: Any = multiprocessing
    module.get_context = get_context
