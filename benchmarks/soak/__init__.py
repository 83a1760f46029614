"""Long runs against simulated engines: random faults, and overload.

`tests/component/soak/test_campaign.py` starts them.
"""
