"""A few lives of a loaded server, ended by kill -9; `make kills` runs many."""

from pathlib import Path

import pytest
from crash.campaign import Campaign


@pytest.mark.parametrize("mode", ["--durable", "--no-durable"])
def test_kills_at_random_moments(tmp_path: Path, mode: str) -> None:
    campaign = Campaign(tmp_path, mode, seed=7)
    for _ in range(3):
        campaign.life(answers_max=300)
    campaign.close()
    assert not campaign.broken, campaign.broken
    assert campaign.counts["acks"] > 0
