"""What the records of requests and the counters of engines mean: search, statistics, bottleneck, verdict. Pure."""
