"""The two ways things go wrong: the caller's input, or the work itself."""


class ContextDescError(Exception):
    """Work that failed: a stage could not finish. The command line exits with 1."""


class InputError(ContextDescError, ValueError):
    """Input that cannot be used; the message names it and what to do. The command line exits with 2."""
