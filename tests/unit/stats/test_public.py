"""The public names of the package resolve lazily, to objects and never to a module of the same name."""

import pkgutil
import subprocess
import sys
import types

import pytest

from pytest_attnaccept import stats


def test_every_public_name_resolves_whatever_was_imported_before():
    for module in pkgutil.iter_modules(stats.__path__):
        __import__(f"{stats.__name__}.{module.name}")
    for name in stats.__all__:
        assert not isinstance(getattr(stats, name), types.ModuleType), name


def test_the_package_itself_imports_nothing_heavy():
    code = "import sys, pytest_attnaccept.stats; print([m for m in ('numpy', 'scipy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_statistics_module_needs_torch():
    code = (
        "import sys, pytest_attnaccept.stats as s\n"
        "[getattr(s, n) for n in s.__all__]\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'statsmodels') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="paired_binery"):
        _ = stats.paired_binery
