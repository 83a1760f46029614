"""Defaults that several modules read, each with its reason. `pdx_api.settings.gateway` has those of the gateway."""

from typing import Final

GATEWAY_REPOSITORY: Final = "ghcr.io/your--org/pdx/gateway"
"""Image of the gateway without its tag, which is PDX's version: what `make images` builds and the chart names. `make
generate` writes the owner from packaging/release.toml."""

LEASE_MARGIN_SECONDS: Final = 5.0
"""How much longer than the hand-off's deadline P pins blocks for D. After it P's blocks are free. In pull orders a D
renews the lease while the request is in its queue; in push orders it does not."""
ENGINE_DRAIN_SECONDS: Final = 600
"""For an engine that stops to finish its requests: answers of reasoning models take minutes."""
STARTUP_SECONDS: Final = 1800
"""For an engine to load; hundreds of GB of weights on slow storage take that long."""
POOL_GIB: Final = 4
"""A pool for some thousand prompts of a small model. Every node has this much memory."""
