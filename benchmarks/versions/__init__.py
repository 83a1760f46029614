"""Real CPU engines of several versions of vLLM: which of PDX's tests pass with each."""
