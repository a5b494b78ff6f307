"""The signature of webhooks."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Any

import pytest
from corvo_client import verify

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
BODY = b'{"type":"job.completed","data":{}}'


def headers(body: bytes = BODY, key: bytes = KEY, at: float | None = None) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    signed = b"msg_1." + stamp.encode() + b"." + body
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "Webhook-Id": "msg_1",
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{'A' * 44} v1,{digest} v2,x",
    }


def test_a_genuine_webhook() -> None:
    assert verify(headers(), BODY, SECRET)["type"] == "job.completed"
    assert verify(headers(), BODY, SECRET.removeprefix("whsec_"))


def test_a_known_signature() -> None:
    given = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert verify(given, b'{"test": 2432232314}', secret, tolerance=float("inf"))["test"]


@pytest.mark.parametrize(
    ("make", "message"),  # made in the test: the collection can be long before it
    [
        (lambda: headers(b"other"), "signature"),
        (lambda: headers(key=b"other"), "signature"),
        (lambda: headers(at=time.time() - 400), "too old"),
        (lambda: headers(at=time.time() + 400), "too old or too new"),
        (dict, "missing or malformed"),
        (lambda: {**headers(), "webhook-timestamp": "x"}, "missing or malformed"),
    ],
)
def test_a_forged_webhook(make: Callable[[], Any], message: str) -> None:
    given = make()
    with pytest.raises(ValueError, match=message):
        verify(given, BODY, SECRET)
