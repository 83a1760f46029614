"""What the operator costs, measured on a control plane with simulated nodes."""
