"""Batches: read one."""

from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.net.api.relations import batch_document
from corvo.net.api.responses import reply_json
from corvo.platform.ids import check_job_id


class Batches:
    """Handlers of /batches."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def get(self, request: Request) -> None:
        """One batch with its counts."""
        batch = self._service.batch(check_job_id(request.params[0], "batch_id"))
        reply_json(request, 200, batch_document(self._service.reads, batch))
