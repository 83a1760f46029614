"""Makes NIXL's progress thread wait for events. NIXL 1.5.1 sets its period to 0 (nixl_agent.__init__ of _api.py).

The thread of an idle engine then uses more than half of a core, and no setting of vLLM, NIXL or UCX changes that.
Python imports this file when it starts, if its folder is in PYTHONPATH.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

PERIOD: Final = 1000
"""Microseconds between two looks of the thread. Events wake it at once."""


class _Finder(MetaPathFinder):
    """Finds NIXL's `_api` modules, and changes the class of an agent's settings after their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if module != "_api" or not package.startswith("nixl_cu"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader)
        return spec


def _run_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        module.nixlBind.nixlAgentConfig = _sleeping(module.nixlBind.nixlAgentConfig)

    loader.exec_module = exec_module


def _sleeping(config: Any) -> Any:
    """The class of an agent's settings, but for the period."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        config.__setattr__(self, name, PERIOD if name == "pthrDelay" else value)

    return type(config.__name__, (config,), {"__setattr__": set_attribute})


sys.meta_path.insert(0, _Finder())
