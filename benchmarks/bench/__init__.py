"""`pdx bench` beside `vllm bench serve`, twice on one trace, and with 1,000 streams: campaigns with dated results."""
