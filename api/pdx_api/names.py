"""Every name that more than one program must spell the same: API group, labels, annotations, ports."""

from enum import StrEnum
from typing import Final

GROUP: Final = "pdx.dev"
API_VERSION: Final = "pdx.dev/v1alpha1"
KIND: Final = "PDDeployment"

LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_REVISION: Final = f"{GROUP}/revision"
ANNOTATION_CONNECTOR: Final = f"{GROUP}/connector"
ANNOTATION_ORDER: Final = f"{GROUP}/order"

ENGINE_PORT: Final = 8000
"""Port of vLLM's HTTP API in an engine pod."""
GATEWAY_PORT: Final = 8080
"""Port on which the gateway serves clients."""
ADMIN_PORT: Final = 9090
"""Port on which the gateway answers /metrics and /pdx/state."""
SIDE_CHANNEL_PORT: Final = 5600
"""Port of NIXL's side channel in an engine pod (VLLM_NIXL_SIDE_CHANNEL_PORT's default)."""


class Mode(StrEnum):
    """Whether prefill and decode run on different engines."""

    DISAGGREGATED = "Disaggregated"
    AGGREGATED = "Aggregated"


class Role(StrEnum):
    """What an engine does for a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class Order(StrEnum):
    """Which of a request's two legs is sent first."""

    PREFILL_FIRST = "PrefillFirst"
    DECODE_FIRST = "DecodeFirst"
    CONCURRENT = "Concurrent"
