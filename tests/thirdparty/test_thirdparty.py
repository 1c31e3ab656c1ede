"""A package that registers a method through an entry point works like a built-in one, and costs nothing when idle."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GATED = """
import pytest

@pytest.mark.approximate(method="{name}"{knobs})
def test_it(accept):
    accept.model()
"""
SCRIPT = """
from pytest_attnaccept import accept as module
from pytest_attnaccept.measurement import Measured, Threshold

class Session:
    def measure(self, check, params):
        return Measured(gates=(Threshold(name=check, value=0.0, limit=1.0),))
    def fingerprint(self):
        return {"weights": "w"}
    def close(self):
        pass

module.Accept._model_session = lambda self, candidate, baseline: Session()
module.Accept._measured = lambda self, session, params: session.measure(self.check, params)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder of its own, from this checkout and without any index."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--target", str(target), str(HERE)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:  # no hatchling here: what the installer would have written
        info = target / "attnaccept_example-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attnaccept-example\nVersion: 0.1.0\n")
        points = ("clustered_kv = attnaccept_example:clustered_kv", "misnamed = attnaccept_example:misnamed")
        text = "\n".join(("[pytest_attnaccept.methods]", *points, "broken = attnaccept_example.missing:nothing", ""))
        (info / "entry_points.txt").write_text(text)
        (target / "attnaccept_example").mkdir()
        source = (HERE / "attnaccept_example/__init__.py").read_text(encoding="utf-8")
        (target / "attnaccept_example/__init__.py").write_text(source, encoding="utf-8")
    return target


def run(installed: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(installed)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_method_of_another_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SCRIPT)
    (tmp_path / "test_it.py").write_text(GATED.format(name="clustered_kv", knobs=", clusters=8"))
    done = run(installed, tmp_path, "--accept-profile=smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [x for p in (tmp_path / ".attnaccept").glob("records.*") for x in p.read_text().splitlines()]
    assert {json.loads(x)["stack"] for x in lines} == {"clustered_kv(clusters=8)"}
    assert len(lines) >= 4


@pytest.mark.parametrize(
    ("name", "knobs", "text"),
    [
        ("clustered_kvv", "", "Did you mean 'clustered_kv'?"),
        ("clustered_kv", ", clusters=0", "clusters=0 must be at least 1"),
        ("misnamed", "", "entry point 'misnamed'"),
        ("broken", "", "entry point 'broken'"),
    ],
)
def test_mistakes_with_a_method_of_another_package(
    installed: Path, tmp_path: Path, name: str, knobs: str, text: str
) -> None:
    (tmp_path / "test_it.py").write_text(GATED.format(name=name, knobs=knobs))
    done = run(installed, tmp_path, "--accept-profile=smoke")
    assert done.returncode == 4, done.stdout + done.stderr
    assert text in done.stdout + done.stderr
    assert not list((tmp_path / ".attnaccept").glob("records.*"))


def test_an_idle_run_does_not_load_the_extension(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n    assert 'attnaccept_example' not in sys.modules\n"
    )
    assert run(installed, tmp_path).returncode == 0
