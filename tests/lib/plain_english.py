"""Phrases that sources and documents must not have, for `test_tidy.py` and `unit/test_docs.py`."""

import re

_TICS = (
    r"(?:^|[.;] +)Who\b(?![^.]*\?)",  # a sentence without a subject
    r"\b(?:[Ww]hoever|[Ww]hom|[Nn]obody|[Ss]omebody)\b",
    r"^What\b(?![^.]*\?)",  # a text that names no subject
    r"\b(?:anew|bit by bit|so many|so long as|as (?:it|they) (?:was|were) said|means nothing)\b",
    r"\b(?:is|are|was|were|be|been) (?:told|said|asked)\b",
    r"\basked for\b|\bfor ever\b",
    r"\b(?:has|have) come\b|\b(?:comes?|came) back\b",
    r"\b(?:goes|go|went) on\b",
    r"\bbeside\b|\bbehind (?:it|this|that|these|those|the (?:one|last|first|entry|watermark))\b",
    r"\b(?:gives?|given) up\b|\b(?:looks?|looked) after\b",
    r"\bthat (?:there (?:is|are)|it is) (?:one|none) of\b|\bis (?:no|none) (?:news|more)\b",
)
_BRITISH = (
    r"\b\w*(?:colour|behaviour|favour|honour|neighbour|labour|licence|centre|catalogue)\w*",
    r"\b(?:optim|organ|recogn|serial|normal|initial|real|minim|maxim|summar|util|prior|synchron|"
    r"author)is(?:e|ed|es|ing|ation)\b|\banalys(?:e|ed|ing)\b",
    r"\b(?:travell|labell|diall)(?:ed|ing)\b",
    r"\b(?:grey|whilst|amongst|towards|misspelt|learnt)\b",
)
TIC = re.compile("|".join(_TICS) + "|(?i:" + "|".join(_BRITISH) + ")")
