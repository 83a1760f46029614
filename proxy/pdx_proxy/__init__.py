"""The gateway: parse, admit, pick, hand off, relay."""
