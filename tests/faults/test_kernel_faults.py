"""Every broken kernel is caught by the cheapest check that names it, and is called what it is.

The quick tier runs one fault per family; `-m full` runs the corpus.
"""

import pytest
import torch

from fixtures.broken.kernels import ALL, OUT_OF_REACH
from fixtures.broken.kernels_base import solve
from fixtures.good.kernels import careful
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import KERNEL_CHECKS, measure_kernel
from pytest_attnaccept.taxonomy import Verdict

QUICK = {
    "causal mask anchored top-left",
    "window one too wide",
    "one pad lane",
    "NaN in empty rows",
    "sink dropped",
    "sentinel as running maximum",
    "softcap ignored",
    "caller scale ignored",
    "ALiBi with wrong sign",
    "one future key, by bits",
    "middle key lost",
    "scale +0.1 %",
    "causal limit wrong for q_len 9 to 16",
    "KV heads tiled",
    "half of V from the next page",
    "NaN of page tails multiplied by 0",
    "zeros for batch rows above 1",
    "heads above 3 lose a key",
    "wrong for strided keys",
    "one slot past the end",
    "stale page of V",
    "page ids in 3 bits, by renaming",
    "row index in 16 bits",
    "element offset in 32 bits",
    "a key lost only beyond 65536",
    "merge in base 2, 98 to 2",
    "PV in fp16",
    "O accumulated in bfloat16",
    "elements swapped",
    "k_scale used for V",
    "backward without mask",
    "newest key lost from row 257 on",
    "last split lost for batch rows above 0",
    "wrong for one buffer over many tiles",
    "decode of another head count wrong at the longest length",
    "K kept by address",
    "page ids in 16 bits",
    "groups of 7 padded to 8",
    "rope features left out for a latent cache",
    "GQA differs from its expanded form",
    "a faint future key in backward",
    "lse of empty rows is +inf",
    "pad lanes except for zeros and ones",
    "depends on the previous call",
    "output buffer reused",
    "lse in base 2",
    "sliding window",
    "top 64 keys",
    "FP8 rounding",
    "V of rank 16",
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def test_the_corpus_is_complete():
    """Every row of kind i is either executable or listed with a reason."""
    rows = [
        "M01",
        "M02",
        "M03",
        "M05",
        "M06",
        "M09",
        "M11",
        "M12",
        "M13",
        "M14",
        "M15",
        "M16",
        "M17",
        "S01",
        "S02",
        "S03",
        "S04",
        "S06",
        "S07",
        "S08",
        "S10",
        "S11",
        "S15",
        "S20",
        "S21",
        "X01",
        "X03",
        "X04",
        "X06",
        "X07",
        "X09",
        "X10",
        "X11",
        "X12",
        "X14",
        "X16",
        "X18",
        "X20",
        "X21",
        "X22",
        "X23",
        "X25",
        "X27",
        "X28",
        "P01",
        "P03",
        "P04",
        "P05",
        "P06",
        "P08",
        "P09",
        "P10",
        "P11",
        "P12",
        "Q01",
        "Q02",
        "Q03",
        "Q12",
        "C24",
        "T05",
        "D15",
    ]
    covered = {fault.source for fault in ALL} | set(OUT_OF_REACH)
    assert set(rows) <= covered
    assert len({fault.name for fault in ALL}) == len(ALL)
    assert sum(fault.source == "family" for fault in ALL) >= 15
    assert {fault.check for fault in ALL} <= set(KERNEL_CHECKS)
    assert {fault.name for fault in ALL} >= QUICK


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name.replace(" ", "-"), marks=[] if f.name in QUICK else [pytest.mark.full]) for f in ALL],
)
def test_the_named_check_catches_it(fault):
    measured = measure_kernel(
        fault.check,
        fault.make(),
        make_contract(**fault.contract),
        max_length=fault.max_length,
        seed=20261,
        device="cpu",
    )
    over = [gate for gate in measured.gates if not gate.value <= gate.limit]
    refused = [refusal.reason for refusal in measured.refusals if refusal.verdict is Verdict.FAIL]
    assert over or refused
    assert fault.looks in measured.seems + " ".join(refused)
    assert measured.reproduce


CONTRACTS = sorted({tuple(sorted((k, str(v)) for k, v in f.contract.items())): f.contract for f in ALL}.items())


@pytest.mark.full
@pytest.mark.parametrize("contract", [contract for _, contract in CONTRACTS], ids=str)
@pytest.mark.parametrize("check", ["value", "inputs", "shapes", "relations", "poison", "repeat"])
def test_the_same_contracts_accept_the_unbroken_kernel(contract, check):
    """The base that the faults are built on passes where they fail; where masked positions must not be read, one that reads none."""
    top_left = contract.get("alignment") == "top_left"
    factor = 1.4426950408889634 if contract.get("lse_base") == "2" else 1.0

    base = careful if contract.get("masked_read") == "never" else solve

    def kernel(call):
        out, lse = base(call, top_left=top_left)
        return out, lse * factor

    measured = measure_kernel(check, kernel, make_contract(**contract), max_length=600, seed=20262, device="cpu")
    assert not [gate for gate in measured.gates if not gate.value <= gate.limit]
    assert all(refusal.verdict is Verdict.NOT_APPLICABLE for refusal in measured.refusals)
