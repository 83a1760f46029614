"""The operator's pure half: what a PDDeployment becomes on Kubernetes."""
