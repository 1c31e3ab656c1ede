"""The checks that the protocol plans are exactly the checks that exist."""

import pytest

pytest.importorskip("torch", reason="the measuring code needs torch; the protocol alone does not")

from pytest_attnaccept import protocol
from pytest_attnaccept.checks.model_registry import CHECKS
from pytest_attnaccept.kernel.run import KERNEL_CHECKS
from pytest_attnaccept.state.cache import CACHE_CHECKS
from pytest_attnaccept.state.decoder import DECODER_CHECKS
from pytest_attnaccept.state.model_level import MODEL_STATE_CHECKS
from pytest_attnaccept.state.prefix import PREFIX_CHECKS


@pytest.mark.parametrize(
    ("planned", "existing"),
    [
        (protocol.KERNEL, KERNEL_CHECKS),
        (protocol.CACHE, CACHE_CHECKS),
        (protocol.PREFIX_CACHE, PREFIX_CHECKS),
        (protocol.DECODER, DECODER_CHECKS),
        ({**protocol.MODEL_EXACT, **protocol.MODEL_APPROXIMATE, **protocol.MODEL_DECODING}, CHECKS),
        ({**protocol.MODEL_STATE, "baseline": "measured by the check equality"}, MODEL_STATE_CHECKS),
    ],
)
def test_planned_checks_exist_and_existing_checks_are_planned(planned, existing):
    assert set(planned) == set(existing)
