"""The traces of the simulation: those that `pdx bench` replays, read by the same code."""

from pdx_cli.bench.load.traces import BLOCK_TOKENS, ENGINE_BLOCK, Chains, Request, Trace, TraceError, read

__all__ = ("BLOCK_TOKENS", "ENGINE_BLOCK", "Chains", "Request", "Trace", "TraceError", "read")
