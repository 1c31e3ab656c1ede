"""A gated project whose measurements follow a script, so that plugin tests need neither torch nor a model.

`CONFTEST` is written into the project under test. It replaces what opens a model session (and the sequential sampling on
top of it, which would load scipy in every run) by an object that does what ``script.json`` says for an item id, else for a check, else for ``*``. A list is played call by
call. Everything else (marks, plan, verdicts, records, exit status) is the product's own.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.protocol import StackEntry, required_depth
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Surface

CONFTEST = """
import hashlib, json, os, pathlib, time

from pytest_attnaccept import accept as _module, fingerprint as _fingerprint
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.measurement import ClusteredSums, Fact, Measured, PairedCounts, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict

HERE = pathlib.Path(__file__).parent


def _threshold(check, value, **more):
    return Measured(gates=(Threshold(name=check, value=value, limit=1.0, where="批次 1, head 3", **more),))


def _paired(check, losses, n):
    return Measured(gates=(PairedCounts(name="needle", losses=losses, gains=0, n=n, base_correct=n),), data_digest="d")


def _refuse(check, verdict, reason):
    return Measured(gates=(Threshold(name=check, value=0.0, limit=1.0),), refusals=(Refusal(verdict=verdict, reason=reason),))


def _raise(error):
    raise error


def _lines(folder):
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in folder.glob("records.*.jsonl"))


ACTIONS = {
    "pass": lambda c: _threshold(c, 0.0),
    "fail": lambda c: _threshold(c, 2.0, seems="sliding window"),
    "nan": lambda c: _threshold(c, float("nan")),
    "inf": lambda c: _threshold(c, float("inf")),
    "many": lambda c: Measured(gates=tuple(Threshold(name=f"m{i}", value=i / 100, limit=1.0) for i in range(12))),
    "nothing": lambda c: Measured(),
    "paired": lambda c: _paired(c, 0, 2000),
    "harm": lambda c: _paired(c, 600, 2000),
    "some": lambda c: _paired(c, 300, 2000),
    "few": lambda c: _paired(c, 0, 5),
    "invalid": lambda c: _refuse(c, Verdict.INVALID, "the candidate is bit-identical to the baseline"),
    "neutral": lambda c: Measured(refusals=(Refusal(verdict=Verdict.NOT_APPLICABLE, reason="no such feature"),)),
    "raise": lambda c: _raise(RuntimeError("boom")),
    "core only": lambda c: _raise(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")),
    "own module": lambda c: _raise(ModuleNotFoundError("No module named 'mine'", name="mine")),
    "chinese": lambda c: _raise(RuntimeError("内核越界")),
    "lines": lambda c: _raise(RuntimeError("first line\\nsecond line " + "x" * 900)),
    "surrogate": lambda c: _raise(RuntimeError("bad name \\udcff and \\x00")),
    "exit": lambda c: _raise(SystemExit(0)),
    "contract": lambda c: _raise(ContractError("window=0 is not allowed")),
    "engine": lambda c: _raise(EngineError("needs compute capability 9.0")),
    "interrupt": lambda c: _raise(KeyboardInterrupt()),
    "crash": lambda c: os._exit(3),
    "sleep": lambda c: time.sleep(60),
    "ondisk": lambda c: _threshold(c, 0.0 if _lines(HERE / ".attnaccept") == int(os.environ["ATTN_LINES"]) else 2.0),
}


class Scripted:
    def __init__(self, accept, candidate):
        self.item = accept._spec.planned.id
        self.load = accept._load_model

    def measure(self, check, params):
        script = json.loads((HERE / "script.json").read_text(encoding="utf-8"))
        if script.get("baseline") == "needed":
            self.load()
        action = script.get(self.item, script.get(check, script.get("*", "pass")))
        if isinstance(action, list):
            counter = HERE / (".calls-" + hashlib.sha256(self.item.encode()).hexdigest()[:12])
            calls = int(counter.read_text()) if counter.exists() else 0
            counter.write_text(str(calls + 1))
            action = action[min(calls, len(action) - 1)]
        return ACTIONS[action](check)

    def fingerprint(self):
        script = json.loads((HERE / "script.json").read_text(encoding="utf-8"))
        return {"weights": script.get("weights", "w1"), "tokenizer": "t1", "device": "cpu"}

    def close(self):
        pass


_original = _module.Accept._model_session, _module.Accept._measured
_own_code = _fingerprint._own_code


def pytest_configure(config):
    # The sources of the package may be edited while these tests run; that is not what they are about.
    _fingerprint._own_code = lambda: "code"
    _fingerprint.package_versions.cache_clear()
    _module.Accept._model_session = lambda self, candidate, baseline: Scripted(self, candidate)
    _module.Accept._measured = lambda self, session, params: session.measure(self.check, params)


def pytest_unconfigure(config):
    _module.Accept._model_session, _module.Accept._measured = _original
"""

H2O = """
import pytest

@pytest.mark.approximate(method="h2o", kv_budget=0.25)
def test_h2o(accept):
    accept.model()
"""

TWO = (
    H2O
    + """
@pytest.mark.approximate(method="kv4")
def test_kv4(accept):
    accept.model()
"""
)


def checks_of(
    method: str = "h2o", profile: str = "smoke", surface: Surface = Surface.MODEL, **knobs: object
) -> list[str]:
    """Return the ids of the checks that one method needs, from the protocol itself."""
    registry = Registry.builtin()
    found = registry.get(method)
    if method == "h2o" and not knobs:
        knobs = {"kv_budget": 0.25}
    entry = StackEntry(method=found, knobs=check_knobs(found, knobs, "here"))
    return [r.check for r in required_depth([entry], surface, load_profile(profile), "here")]


SMOKE = checks_of()
N = len(SMOKE)
GATE = "--accept-profile=smoke"


@dataclass
class Outcome:
    """What one run left behind."""

    ret: int
    text: str
    folder: Path
    passed: int = 0
    failed: int = 0
    errors: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def records(self) -> list[dict]:
        """Every record of the folder, in file order."""
        paths = sorted(self.folder.glob("records.*.jsonl"))
        return [json.loads(x) for p in paths for x in p.read_text(encoding="utf-8").splitlines()]

    @property
    def summary(self) -> dict:
        """The run's verdict.json."""
        return json.loads((self.folder / "verdict.json").read_text(encoding="utf-8"))

    @property
    def gate(self) -> str:
        """The verdict of the run."""
        return self.summary["verdict"]

    @property
    def verdicts(self) -> dict[str, str]:
        """Judged verdict per planned item."""
        return {i["item"]: i["verdict"] for i in self.summary["items"]}

    @property
    def tally(self) -> dict[str, int]:
        """How many planned items ended with which verdict."""
        return dict(Counter(self.verdicts.values()))

    def headline(self, item: str) -> str:
        """The judged headline of one item."""
        return next(i["headline"] for i in self.summary["items"] if i["item"] == item)


class Project:
    """A folder with scripted tests that pytest can be run in."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.file("conftest.py", CONFTEST)
        self.script()

    def file(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def script(self, **actions: object) -> None:
        """Say what each item, check or everything (``default``) does."""
        body = {k.replace("default", "*"): v for k, v in actions.items()}
        self.file("script.json", json.dumps(body, ensure_ascii=False))

    def script_items(self, actions: dict[str, object]) -> None:
        """Like `script`, for names that are not identifiers."""
        self.file("script.json", json.dumps(actions, ensure_ascii=False))

    def run(self, *args: str, apart: bool = False) -> Outcome:
        """Run pytest in the project, in this process or apart from it."""
        run = self.pytester.runpytest_subprocess if apart else self.pytester.runpytest_inprocess
        result = run(*args)
        counts = {} if "-p" in args and "no:terminal" in args else _counts(result)
        return Outcome(
            ret=int(result.ret),
            text=result.stdout.str() + "\n" + result.stderr.str(),
            folder=self.path / ".attnaccept",
            passed=counts.get("passed", 0),
            failed=counts.get("failed", 0),
            errors=counts.get("errors", 0),
            outcomes=counts,
        )

    def junit(self, name: str = "out.xml") -> ElementTree.Element:
        """Parse a JUnit file of the project."""
        return ElementTree.parse(self.path / name).getroot()


def _counts(result: pytest.RunResult) -> dict[str, int]:
    try:
        return result.parseoutcomes()
    except ValueError:
        return {}
