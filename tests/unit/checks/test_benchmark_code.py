"""Generated code: only a program that reaches its end has passed, and it reaches nothing outside."""

from __future__ import annotations

import gzip
import json
import time

import pytest

from pytest_attnaccept.checks.benchmark_code import humaneval_problems, passes
from pytest_attnaccept.errors import ContractError, EngineError

GOOD = "def f(x):\n    return x + 1\n\ndef check(g):\n    assert g(1) == 2\ncheck(f)\n"


def test_a_right_program_passes_and_a_wrong_one_does_not():
    assert passes(GOOD)
    assert not passes(GOOD.replace("x + 1", "x + 2"))
    assert not passes("def f(:\n")


# What could look like a success without one: leaving early, writing to the output, swallowing every error.
EARLY = {
    "exit": "import sys\nsys.exit(0)\n",
    "hard exit": "import os\nos._exit(0)\n",
    "system exit": "raise SystemExit(0)\n",
    "quit": "quit()\n",
    "words": "print('passed')\nraise SystemExit\n",
    "hidden": "import os\nos.write(1, b'passed')\nos._exit(0)\n",
    "swallowed": "try:\n    assert False\nfinally:\n    import os\n    os._exit(0)\n",
}


@pytest.mark.parametrize("code", EARLY.values(), ids=EARLY)
def test_leaving_early_is_not_passing(code):
    assert not passes(code + GOOD)


OUTSIDE = {
    "socket": "import socket\nsocket.socket()\n",
    "connection": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')\n",
    "lookup": "import socket\nsocket.getaddrinfo('localhost', 80)\n",
    "process": "import subprocess\nsubprocess.run(['true'])\n",
    "system": "import os\nassert os.system('true') == 0\n",
    "fork": "import os\nos.fork()\n",
    "write": "open('file', 'w').write('x')\n",
    "remove": "import os\nos.remove('file')\n",
    "library": "import ctypes\nctypes.CDLL(None)\n",
    "limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (100, 100))\n",
    "memory": "x = bytearray(3 << 30)\n",
    "recursion": "def r():\n    return r()\nr()\n",
}


@pytest.mark.parametrize("code", OUTSIDE.values(), ids=OUTSIDE)
def test_a_program_reaches_nothing_outside(code):
    assert passes(GOOD)
    assert not passes(code + GOOD)


def test_a_program_without_end_is_stopped():
    started = time.perf_counter()
    assert not passes("while True:\n    pass\n" + GOOD, seconds=1)
    assert not passes("import time\ntime.sleep(60)\n" + GOOD, seconds=1)
    assert time.perf_counter() - started < 30


ROW = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(g):\n    pass\n"}


def test_problems_are_read_from_a_file_or_its_folder(tmp_path):
    plain, packed = tmp_path / "problems.jsonl", tmp_path / "HumanEval.jsonl.gz"
    text = "\n".join([json.dumps(ROW), "", json.dumps({**ROW, "task_id": "HumanEval/1"})])
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    for source in (plain, packed, tmp_path):
        assert [row["task_id"] for row in humaneval_problems(str(source))] == ["HumanEval/0", "HumanEval/1"]
    assert len(humaneval_problems(str(plain), 1)) == 1


def test_rows_that_cannot_be_tested_are_refused(tmp_path):
    file = tmp_path / "HumanEval.jsonl"
    with pytest.raises(EngineError, match="holds neither"):
        humaneval_problems(str(tmp_path))
    file.write_text(json.dumps({**ROW, "test": None}), encoding="utf-8")
    with pytest.raises(ContractError, match="row 1 lacks test"):
        humaneval_problems(str(tmp_path))
    file.write_text("", encoding="utf-8")
    with pytest.raises(ContractError, match="no problem"):
        humaneval_problems(str(tmp_path))
