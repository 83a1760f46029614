"""One module per command, with `add_arguments(parser)` and `run(args)`; `pdx_cli.main` lists them.

A command may import every other package of the CLI, but no other command.
"""
