"""Two real engines on one GPU behind the gateway: equal texts, transfers, and split against aggregated."""
