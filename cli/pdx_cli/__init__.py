"""The command line `pdx`: runs a PDDeployment on one machine, and inspects one here or in a cluster.

Imports go downwards: main, commands, checks | local, sources, inputs, runs, errors.
"""
