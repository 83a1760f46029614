"""Reads vLLM's Python code without importing it, and compares it with PDX's assumptions (`pdx_api.vllm`)."""
