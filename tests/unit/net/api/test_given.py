"""Very many jobs that a bulk action names: in which entries they go."""

from corvo import limits
from corvo.net.api.handlers.bulk import Given

IDS = [f"job_{number}" for number in range(2 * limits.OPERATION_IDS_MAX + 1)]


def test_some_at_a_time() -> None:
    given = Given(IDS, "task", in_background=True, at_once=False)
    parts = [given.part() for _ in range(3)]
    assert [job_id for part, _ in parts for job_id in part] == IDS
    assert [more for _, more in parts] == [True, True, False]
    assert given.part() == ([], False)


def test_all_at_once_where_the_request_has_a_key() -> None:
    """Sent again, it gets the outcome of the first entry: that has to be all there is."""
    given = Given(IDS, "task", in_background=True, at_once=True)
    assert given.part() == (IDS, False)
