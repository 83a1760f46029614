"""The imports of `vllm serve` and of its EngineCore, for preloaded.py."""

import sys
from multiprocessing.context import BaseContext
from typing import Any, Final

import vllm.distributed.nixl_utils
import vllm.entrypoints.cli.benchmark.main
import vllm.entrypoints.cli.serve
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.llama
import vllm.v1.engine.core
import vllm.v1.engine.utils
import vllm.v1.worker.cpu_model_runner
import vllm.v1.worker.cpu_worker
from vllm.entrypoints.cli.main import main

__all__ = ["let_nixl_sleep", "main", "start_processes_in"]

_NIXL_PERIOD: Final = 1000
"""Microseconds between two looks of NIXL's progress thread. Events wake it at once."""


def start_processes_in(context: BaseContext) -> None:
    """Make vLLM start its EngineCore in a context of multiprocessing; the CPU platform insists on `spawn`."""
    module: Any = vllm.v1.engine.utils
    module.get_mp_context = lambda: context


def let_nixl_sleep() -> None:
    """Make NIXL's progress thread wait for events. NIXL 1.5.1 sets its period to 0 (nixl_agent.__init__ of _api.py).

    The thread of an idle engine then uses more than half of a core, and no setting of vLLM, NIXL or UCX changes that.
    """
    module: Any = vllm.distributed.nixl_utils
    load = module._load_nixl_attr

    def load_sleeping(name: str) -> Any:
        loaded = load(name)
        if name == "NixlWrapper" and loaded is not None:
            bindings = sys.modules[loaded.__module__].nixlBind
            bindings.nixlAgentConfig = _sleeping(bindings.nixlAgentConfig)
        return loaded

    module._load_nixl_attr = load_sleeping


def _sleeping(config: Any) -> Any:
    """The class of an agent's settings, but for the period."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        config.__setattr__(self, name, _NIXL_PERIOD if name == "pthrDelay" else value)

    return type(config.__name__, (config,), {"__setattr__": set_attribute})
