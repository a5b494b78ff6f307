"""The default of a callback that is not set."""


def noop(*_arguments: object) -> None:
    """Do nothing."""
