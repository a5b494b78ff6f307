"""HTTP API client of the commands; every request opens its own connection."""

import http.client
import logging
import os
import re
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from corvo.errors import CorvoError, ValidationError
from corvo.limits import PAGE_MAX

_log = logging.getLogger("corvo.cli")

T = TypeVar("T")
_API_PATH = re.compile("/api/v1(?:/|$)")  # as in the URL of a request
_NEXT = re.compile('<([^>]*)>[ \t]*;[ \t]*rel="?next"?[ \t]*(?:[,;]|$)')  # in the header Link


class ServerError(CorvoError):
    """The server returned an error, with a text, a code and further fields."""

    def __init__(self, message: str, code: str, fields: dict[str, object]) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields


class Unreachable(CorvoError):
    """There was no usable response; `hint` suggests a next step to the user."""

    code = "REQUEST_FAILED"

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def segment(name: str) -> str:
    """Encode a job id, queue name or schedule name as one path segment."""
    if not name:
        raise ValidationError("a job id or queue name must not be empty")
    return urllib.parse.quote(os.fsencode(name), safe="")


class Client:
    """An API client with the URL of the server and a timeout."""

    def __init__(self, server: str, timeout_s: float, ca_file: str | None = None) -> None:
        """`server` is a URL; a bare `host:port` means http. A path from /api/v1 on is dropped.

        `ca_file` holds the CA certificates that verify the server, instead of those of the system.
        """
        text = server.strip()
        try:
            url = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
            self.port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError as e:
            raise ValidationError(f'--server "{server}": {e}') from None
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValidationError(f'--server "{server}" must look like http://host:port')
        if url.query or url.fragment or url.username is not None:
            raise ValidationError(f'--server "{server}" must be only scheme, host, port and path')
        self.host = url.hostname
        self.tls = url.scheme == "https"
        self.prefix = _API_PATH.split(url.path, maxsplit=1)[0].rstrip("/")
        self.server = f"{url.scheme}://{url.netloc}{self.prefix}"
        self.timeout_s = timeout_s
        self.ca_file = ca_file
        self._tls_context = _tls_context(ca_file) if self.tls else None

    def get(self, path: str, wait_s: float = 0) -> bytes:
        """Send a GET and return the body; `wait_s` extends the timeout by an intended wait."""
        return self.request("GET", path, None, wait_s)

    def get_pages(self, path: str, noun: str) -> bytes:
        """Send GETs until the list `noun` has no more pages; the first body with all its items."""
        first = page = self.get(f"{path}?limit={PAGE_MAX}")
        items: list[msgspec.Raw] = []
        while True:
            body = self.decode(page, dict[str, msgspec.Raw])
            items += self.decode(bytes(body.get(noun, b"null")), list[msgspec.Raw])
            if "cursor" not in body:
                break
            cursor = self.decode(bytes(body["cursor"]), str)
            page = self.get(f"{path}?limit={PAGE_MAX}&cursor={cursor}")
        whole = self.decode(first, dict[str, msgspec.Raw])
        whole.pop("cursor", None)
        return msgspec.json.encode(whole | {noun: items})

    def get_array(self, path: str) -> bytes:
        """Send GETs until an array has no more pages; one array of all its items.

        The query of each further page is that of the link to it."""
        items: list[msgspec.Raw] = []
        query = f"limit={PAGE_MAX}"
        while query:
            page, headers = self._exchange("GET", f"{path}?{query}")
            items += self.decode(page, list[msgspec.Raw])
            link = _NEXT.search(", ".join(headers.get_all("Link", [])))
            query = urllib.parse.urlsplit(link[1]).query if link else ""
        return msgspec.json.encode(items)

    def post(self, path: str, body: object, wait_s: float = 0, key: str | None = None) -> bytes:
        """Send a POST and return the body.

        `wait_s` extends the timeout by an intended wait; `key` is the Idempotency-Key."""
        return self.request("POST", path, msgspec.json.encode(body), wait_s, key)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        wait_s: float = 0,
        key: str | None = None,
    ) -> bytes:
        """Send a request and return the body of a 2xx response (empty for 204); else raise."""
        return self._exchange(method, path, body, wait_s, key)[0]

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        wait_s: float = 0,
        key: str | None = None,
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Send a request and return the body and the headers of a 2xx response; else raise."""
        connection = self._connect(wait_s)
        headers = {"Accept": "application/json", "Connection": "close"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        begun = time.monotonic()
        try:
            connection.request(method, self.prefix + path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as e:
            raise self._unreachable(e, self.timeout_s + wait_s) from e
        finally:
            connection.close()
        taken_ms = (time.monotonic() - begun) * 1000
        _log.debug("%s %s status=%d ms=%.1f", method, path, answer.status, taken_ms)
        if not 200 <= answer.status < 300:
            raise refusal(answer.status, answer.reason, data)
        return data, answer.headers

    def lines(self, path: str, wait_s: float) -> Iterator[bytes]:
        """Yield the lines of a streamed body, without line ends, as they arrive.

        `wait_s` is the maximum silence of the stream."""
        connection = self._connect(wait_s)
        try:
            connection.request("GET", self.prefix + path, None, {"Accept": "text/event-stream"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise refusal(answer.status, answer.reason, answer.read())
            while line := answer.readline():
                yield line.rstrip(b"\r\n")
        except (OSError, http.client.HTTPException) as e:
            raise self._unreachable(e, self.timeout_s + wait_s) from e
        finally:
            connection.close()

    def _connect(self, wait_s: float) -> http.client.HTTPConnection:
        timeout_s = self.timeout_s + wait_s
        if self._tls_context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=timeout_s, context=self._tls_context
        )

    def decode(self, data: bytes, kind: type[T]) -> T:
        """Decode a response as a value of `kind`; unknown fields are ignored."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Unreachable(
                f"request failed: unexpected response ({e})",
                f"Is a Corvo server listening on {self.server}?",
            ) from e

    def _unreachable(self, e: Exception, waited_s: float) -> Unreachable:
        if isinstance(e, TimeoutError):
            reason = f"no response within {waited_s:g} s"
            hint = "The server may be busy; use --timeout to wait longer."
        elif isinstance(e, ssl.SSLCertVerificationError):
            reason = f"the certificate of the server is not trusted: {e.verify_message}"
            hint = "Give the CA certificate of the server with --cacert FILE or CORVO_CACERT."
            if "mismatch" in e.verify_message:
                hint = "Use a host name of the certificate in the URL of --server."
        elif isinstance(e, ssl.SSLError):
            reason = f"no TLS connection: {e.reason or e}"
            hint = f"If the server has no TLS, use http:// instead of {self.server}."
        elif isinstance(e, http.client.RemoteDisconnected | ConnectionResetError) and not self.tls:
            reason = "the server closed the connection"
            hint = f"If the server has TLS, use https:// instead of {self.server}."
        else:
            reason = str(getattr(e, "strerror", None) or e or type(e).__name__)
            hint = (
                f"Is the server running on {self.server}? Start one with `corvo server`, "
                "or set another URL with --server or CORVO_URL."
            )
        return Unreachable(f"request failed: {reason}", hint)


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise ValidationError(f"--cacert {ca_file} holds no PEM certificate") from None
    except OSError as e:
        raise ValidationError(f"--cacert {ca_file}: {e.strerror}") from None


def refusal(status: int, reason: str, data: bytes) -> ServerError:
    """Build the error for a response with a status of 300 or above."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = data.decode("utf-8", "replace").strip()
        return ServerError(text or f"{status} {reason}", f"HTTP_{status}", {})
    message = str(fields.pop("error", "") or f"{status} {reason}")
    return ServerError(message, str(fields.pop("code", f"HTTP_{status}")), fields)
