"""Long runs against simulated engines: random faults, and overload. `tests/component/test_campaign.py` starts them."""
