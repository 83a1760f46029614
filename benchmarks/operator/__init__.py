"""The cost of the operator, measured on a control plane with simulated nodes."""
