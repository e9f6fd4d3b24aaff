"""The commands of `espalier`: a module each, with `add_arguments(parser)` and `run(arguments)`.

Only the module of the command that is called is imported. `flags`, `model` and `terminal` are
what they share.
"""
