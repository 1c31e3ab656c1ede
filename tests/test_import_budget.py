"""An idle plugin costs next to nothing: few modules, none of them heavy, no output and no file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "scipy", "yaml", "transformers", "pandas", "datasets", "pydantic", "rich"}
MOST_NEW = 12  # policy: the package, its plugin module and hook specifications leave room for a few more

PROBE = """
import json, sys
import pytest

class Probe:
    def pytest_unconfigure(self, config):
        with open(sys.argv[1], "w") as stream:
            json.dump(sorted(sys.modules), stream)

status = pytest.main(sys.argv[2:], plugins=[Probe()])
sys.exit(int(status))
"""


def modules_of(folder: Path, *options: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Run pytest in `folder` in a fresh process; return the modules loaded at its end."""
    (folder / "probe.py").write_text(PROBE)
    target = folder / "modules.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [sys.executable, str(folder / "probe.py"), str(target), "--rootdir", str(folder), *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return set(json.loads(target.read_text())), done


IDLE_TEST = "import pytest\n@pytest.mark.parametrize('a', [1, 2])\ndef test_plain(a):\n    assert a\n"


@pytest.mark.parametrize("options", [("--co",), ("-q",)], ids=["collect-only", "run"])
def test_idle_plugin_loads_little(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_plain.py").write_text(IDLE_TEST)
    without, plain = modules_of(tmp_path, *options)
    with_plugin, done = modules_of(tmp_path, "-p", "pytest_attnaccept.plugin", *options)
    new = with_plugin - without
    assert done.returncode == plain.returncode == 0
    assert 2 <= len(new) <= MOST_NEW, sorted(new)
    assert not {m.split(".")[0] for m in new} & HEAVY
    assert "attnaccept" not in done.stdout.replace("pytest_attnaccept", "").replace("test_idle_plugin", "")
    assert not (tmp_path / ".attnaccept").exists()


def test_importing_the_package_and_its_commands_loads_nothing_heavy() -> None:
    code = (
        "import sys, pytest_attnaccept, pytest_attnaccept.plugin, pytest_attnaccept.__main__\n"
        "import pytest_attnaccept.completeness, pytest_attnaccept.shards, pytest_attnaccept.reports.terminal\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not set(json.loads(done.stdout.replace("'", '"'))) & HEAVY


def test_collecting_gated_tests_loads_nothing_heavy_but_yaml(tmp_path: Path) -> None:
    (tmp_path / "test_gate.py").write_text(
        "import pytest\n@pytest.mark.approximate(method='h2o', kv_budget=0.25)\ndef test_h2o(accept):\n    accept.model()\n"
    )
    modules, done = modules_of(tmp_path, "-p", "pytest_attnaccept.plugin", "--co", "-q")
    assert done.returncode == 0
    assert {m.split(".")[0] for m in modules} & HEAVY == {"yaml"}  # the profile
