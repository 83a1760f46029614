"""The command line `pdx`: runs a PDDeployment on one machine, and inspects one here or in a cluster.

Imports go downwards: entry, main, commands, support, checks | display | local, sources, inputs, runs, usage, errors.
"""
