"""The default of callbacks that nobody has set."""


def noop(*_arguments: object) -> None:
    """Do nothing."""
