"""The table of digests against a dict."""

from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.index.digest_table import DigestTable

# Few homes, so that runs of slots collide, wrap around and close up.
DIGESTS = st.builds(lambda high, low: high << 32 | low, st.integers(0, 9), st.integers(60, 67))
ACTIONS = st.tuples(st.sampled_from(["put", "put", "remove"]), DIGESTS, st.integers(1, 2**64 - 1))


@given(st.lists(ACTIONS, max_size=200))
def test_it_is_a_dict(actions: list[tuple[str, int, int]]) -> None:
    table, model = DigestTable(), dict[int, int]()
    for action, digest, number in actions:
        if action == "put":
            table.put(digest, number)
            model[digest] = number
        else:
            table.remove(digest, number)
            if model.get(digest) == number:
                del model[digest]
            table.remove(digest, model.pop(digest, 1))
        assert len(table) == len(model)
        for known in range(10):
            for low in range(60, 68):
                key = known << 32 | low
                assert table.get(key) == model.get(key, 0)


def test_it_grows() -> None:
    table = DigestTable()
    for number in range(1, 10_001):
        table.put(number * 0x9E37_79B9_7F4A_7C15 % 2**64, number)
    assert len(table) == 10_000
    for number in range(1, 10_001):
        digest = number * 0x9E37_79B9_7F4A_7C15 % 2**64
        assert table.get(digest) == number
        table.remove(digest, number)
    assert len(table) == 0
