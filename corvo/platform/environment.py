"""Variables of the environment: those of commands, and those that seem to be misspelled."""

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Final

# Variables of the client commands.
CLIENT_VARIABLES: Final = ("CORVO_URL", "CORVO_SERVER", "CORVO_CACERT", "CORVO_LEASE_TOKEN")
_PREFIX: Final = "CORVO_"
# Variables that Kubernetes adds to a container for a service whose name starts with "corvo".
_SERVICE_LINK: Final = re.compile(r"CORVO_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT\w*)", re.ASCII)
_RESEMBLANCE_MIN: Final = 0.75


def misspelled(variables: Iterable[str], known: Collection[str]) -> list[str]:
    """Describe each variable that is not known, but resembles a known one.

    These are warnings, not errors: other programs and Kubernetes may share the environment."""
    names = [name.removeprefix(_PREFIX) for name in known]
    found = []
    for variable in sorted(variables):
        foreign = not variable.startswith(_PREFIX) or _SERVICE_LINK.fullmatch(variable)
        if foreign or variable in known:
            continue
        if near := difflib.get_close_matches(
            variable.removeprefix(_PREFIX), names, 1, _RESEMBLANCE_MIN
        ):
            found.append(f"nothing reads {variable}; did you mean {_PREFIX}{near[0]}?")
    return found
