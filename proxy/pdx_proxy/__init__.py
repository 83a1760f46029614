"""The gateway: parse, pick, hand off, relay."""
