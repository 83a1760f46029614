"""The gateway: an OpenAI-compatible server that splits each request into a prefill leg and a decode leg.

Data plane: http, payload, admission, balancing, engines, handoff, serving. Control plane: discovery, endpoints, health,
verification; it publishes a `Snapshot` that the data plane reads. `process` runs both.
"""

import os

if os.path.isdir(f"{__path__[0]}/../.compiled"):
    from pdx_proxy.compiled import use

    use()
