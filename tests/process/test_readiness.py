"""/readyz and search: after a start, and when the mirror fails later."""

import os
import signal
import time
from pathlib import Path

from lib.harness import mirror_status, refused, running_server, until


def test_search_answers_when_a_server_is_ready(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        began_s = time.monotonic()
        api = server.api()
        until(lambda: api.get("//readyz")[0] == 200, "it is never ready")
        found = api.post("/jobs/search", {})
        assert found[0] == 200 or time.monotonic() - began_s > 4.9, found
        until(lambda: api.get("//readyz?mirror=true")[0] == 200, "search never opens")
        assert api.post("/jobs/search", {})[0] == 200
        os.kill(mirror_status(api)["pid"], signal.SIGKILL)
        until(lambda: api.get("//readyz?mirror=true")[0] == 503, "nobody notices")
        assert api.get("//readyz")[0] == 200
        until(lambda: api.get("//readyz?mirror=true")[0] == 200, "it is not restarted")
        api.close()


def test_without_a_mirror(data_dir: Path) -> None:
    with running_server(data_dir, "--mirror=false") as server:
        api = server.api()
        assert api.get("//readyz")[0] == 200
        answer = refused(api.get("//readyz?mirror=true"), 503, "NOT_READY")
        assert "off" in answer["error"]
        api.close()
