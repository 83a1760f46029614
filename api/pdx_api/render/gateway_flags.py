"""The gateway's flags for a spec: those whose values are not the gateway's defaults. Pure.

`pdx_proxy.config.flags` parses them. The operator writes them into pods; `pdx up` starts its gateway with them.
"""

from collections.abc import Iterator
from functools import reduce

from pdx_api.settings.groups import SETTINGS
from pdx_api.spec.types import Spec


def gateway_flags(spec: Spec) -> tuple[str, ...]:
    """The flags for the parts of a spec that concern requests, each as `--name=value`."""
    return tuple(_flags(spec))


def _flags(spec: Spec) -> Iterator[str]:
    for setting in SETTINGS:
        part = reduce(getattr, setting.group.spec.split("."), spec) if setting.group.spec else None
        if part is not None:
            value = setting.kind.written(getattr(part, setting.field))
            if value != setting.kind.written(setting.default):
                yield f"{setting.flag}={value}"
