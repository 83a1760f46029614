"""`pdx`: a PDDeployment on one machine, and looks at it."""
