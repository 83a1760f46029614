"""What a command works on: a PDDeployment from a file, or the deployment that the flags select.

Imports `runs`, to find what `pdx up` runs on this machine.
"""
