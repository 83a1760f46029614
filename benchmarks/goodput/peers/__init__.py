"""The policies of other gateways, written anew from their sources; each module names its own."""
