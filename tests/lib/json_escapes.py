"""JSON texts of one value, escaped in several ways."""

import json
import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def escape_all(text: str) -> str:
    """The same JSON value with all characters of its strings as \\uXXXX."""

    def escape(match: re.Match[str]) -> str:
        units = json.loads(match.group()).encode("utf-16-be", "surrogatepass")
        pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
        return f'"{"".join(chr(92) + "u" + pair for pair in pairs)}"'

    return _STRING.sub(escape, text)
