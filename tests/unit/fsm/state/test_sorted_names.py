"""Names in order."""

from hypothesis import given
from hypothesis import strategies as st

from corvo.fsm.state import sorted_names
from corvo.fsm.state.sorted_names import SortedNames

NAMES = st.text("ab/é", max_size=3)


@given(st.lists(NAMES), NAMES, st.integers(0, 5))
def test_names_come_and_go(changes: list[str], after: str, limit: int) -> None:
    names, expected = SortedNames(), set[str]()
    for name in changes:
        if name in expected:
            names.remove(name)
            expected.remove(name)
        else:
            names.add(name)
            expected.add(name)
    above = sorted(name for name in expected if name > after)
    assert names.after(after, limit) == above[:limit]


def test_very_many_names_are_in_runs() -> None:
    count = 5 * sorted_names._RUN_MAX
    names = SortedNames()
    texts = [f"{number * 7919 % count:06}" for number in range(count)]
    for text in texts:
        names.add(text)
    assert names.after("", count + 1) == sorted(texts)
    assert names.after("000499", 2) == ["000500", "000501"]
    assert max(map(len, names._runs)) <= sorted_names._RUN_MAX
    for text in texts[1:]:
        names.remove(text)
    assert names.after("", count) == texts[:1] and len(names._runs) == 1
