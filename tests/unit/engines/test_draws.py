"""Runs that draw are comparable, and the generators are given back."""

from __future__ import annotations

import pytest
import torch

from pytest_attnaccept.engines.draws import same_draws


def drawn() -> list[float]:
    return torch.rand(3).tolist()


@pytest.mark.parametrize("seed", [None, 7])
def test_every_run_draws_the_same_and_nobody_notices(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        alone = [drawn(), drawn()]
        torch.manual_seed(3)
        first = drawn()
        found = []
        for _ in range(2):
            with same_draws(seed):
                found.append(drawn())
        assert [first, drawn()] == alone
    assert found[0] == found[1]
    assert (found[0] == first) == (seed is None)


def test_a_run_cannot_be_told_by_its_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        with same_draws():
            assert torch.initial_seed() == 11
        with same_draws(5), same_draws():
            assert torch.initial_seed() == 5
        assert torch.initial_seed() == 11


def test_generators_come_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"), same_draws(1):
        torch.rand(5)
        raise RuntimeError("broken")
    assert torch.equal(torch.get_rng_state(), before)
