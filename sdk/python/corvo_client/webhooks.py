"""Webhooks: the check that a request comes from the server (Standard Webhooks)."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any


def verify(headers: Mapping[str, str], body: bytes, secret: str, tolerance: float = 300) -> Any:
    """Return the decoded body of a webhook. Raises ValueError if the signature is wrong, or if it
    is older or newer than the tolerance in seconds."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        identity, stamp = given["webhook-id"], given["webhook-timestamp"]
        signatures, sent_at = given["webhook-signature"].split(), int(stamp)
    except (KeyError, ValueError):
        raise ValueError("the headers of a webhook are missing or malformed") from None
    if abs(time.time() - sent_at) > tolerance:
        raise ValueError("the webhook is too old or too new")
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((identity.encode(), stamp.encode(), body))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    if not any(hmac.compare_digest(f"v1,{expected}", found) for found in signatures):
        raise ValueError("the signature of the webhook is wrong")
    return json.loads(body)
