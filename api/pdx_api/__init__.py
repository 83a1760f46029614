"""What operator, gateway, simulator and CLI agree on: the PDDeployment, its names and the KV connectors. No I/O."""
