"""The gateway's settings, each declared once in `gateway`. Pure, and without pydantic, which the gateway lacks."""
