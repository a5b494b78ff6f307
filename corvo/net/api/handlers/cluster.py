"""Changes of the members of a cluster."""

from typing import Any

from corvo import limits
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.leadership import Membership
from corvo.errors import CorvoError, Unsupported
from corvo.net.api.requests import JoinBody, MemberBody, decode, decode_optional
from corvo.net.api.responses import reply_json


class ClusterVerbs:
    """Handlers of join, remove, transfer and promote."""

    def __init__(self, members: Membership | None) -> None:
        """Without `members` this is a single server."""
        self._known = members

    @property
    def _members(self) -> Membership:
        if self._known is None:
            raise Unsupported("this is a single server, not a node of a cluster (--raft-bind)")
        return self._known

    def join(self, request: Request) -> None:
        """200 when the node is in the log as a member, new or not."""
        members = self._members
        body = decode(request.body, JoinBody)
        facts = body.cluster_id, body.node_id, body.addr, body.http_addr
        members.check_proof(body.proof, *facts)

        def answer(result: bool | CorvoError) -> None:
            if isinstance(result, CorvoError):
                reply_error(request, result)
                return
            reply = {"status": "ok", "added": result, "node_id": body.node_id, "addr": body.addr}
            reply_json(request, 200, reply)

        members.add(body.node_id, body.addr, body.http_addr, answer)

    def remove(self, request: Request) -> None:
        """200 when the node is out."""
        node_id = _node_id(decode(request.body, MemberBody))
        self._members.remove(node_id, lambda error: _reply(request, error))

    def promote(self, request: Request) -> None:
        """200 when the node votes."""
        node_id = _node_id(decode(request.body, MemberBody))
        self._members.promote(node_id, lambda error: _reply(request, error))

    def transfer(self, request: Request) -> None:
        """202: the node, or the best one, gets a request to lead."""
        node_id = _node_id(decode_optional(request.body, MemberBody))
        name = self._members.transfer(node_id)
        reply_json(request, 202, {"status": "ok", "node_id": name})


def _node_id(body: MemberBody) -> str:
    return validate.key(body.node_id, "node_id", limits.JOB_ID_SIZE_MAX)


def _reply(request: Request, error: CorvoError | None) -> None:
    if error is not None:
        reply_error(request, error)
        return
    reply: dict[str, Any] = {"status": "ok"}
    reply_json(request, 200, reply)
