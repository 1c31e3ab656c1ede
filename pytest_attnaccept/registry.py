"""Name -> method: built-in rows, entry points and conftest registrations, looked up with a did-you-mean.

Positions
---------
1. Entry points (group ``pytest_attnaccept.methods``) are read by name and loaded only when that name is asked for, so an
   installed extension costs nothing in an idle run.
2. A name is taken once: a second registration is an error, never a silent override of what a release is gated by.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_attnaccept.catalog import BUILTIN_METHODS
from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.taxonomy import Kind, Knob, Method

__all__ = ["Registry", "check_knobs", "check_mark_kind"]

METHOD_GROUP = "pytest_attnaccept.methods"


@functools.lru_cache(maxsize=1)
def _entry_point_names() -> Mapping[str, object]:
    from importlib.metadata import entry_points  # costs 10 ms: only when a name is not built in

    return {point.name: point for point in entry_points(group=METHOD_GROUP)}


@dataclass
class Registry:
    """All methods that a run knows."""

    _methods: dict[str, Method] = field(default_factory=dict)
    _alias: dict[str, str] = field(default_factory=dict)

    @classmethod
    def builtin(cls) -> Registry:
        """Return a registry with the methods that ship with the package."""
        registry = cls()
        for method in BUILTIN_METHODS:
            registry.method(method)
        return registry

    def method(self, method: Method) -> None:
        """Register `method`; a name or alias that is taken is an error."""
        if not isinstance(method, Method):
            raise UsageError(f"a method must be a pytest_attnaccept.Method, got {type(method).__name__}")
        for name in (method.name, *method.aliases):
            if name in self._methods or name in self._alias:
                raise UsageError(f"method name {name!r} is registered twice; pick another name")
        self._methods[method.name] = method
        self._alias.update(dict.fromkeys(method.aliases, method.name))

    def names(self) -> list[str]:
        """Return every name and alias that can be used in a mark, entry points included."""
        return [*self._methods, *self._alias, *_entry_point_names()]

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def find(self, name: object) -> Method | None:
        """Return the method called `name` (alias allowed), or None."""
        if not isinstance(name, str):
            return None
        name = self._alias.get(name, name)
        if name not in self._methods and name in _entry_point_names():
            self._load_entry_point(name)
        return self._methods.get(name)

    def get(self, name: object, where: str = "") -> Method:
        """Return the method called `name`, or raise with a suggestion."""
        method = self.find(name)
        if method is None:
            raise UnknownNameError("method", str(name), self.names(), where)
        return method

    def _load_entry_point(self, name: str) -> None:
        point = _entry_point_names()[name]
        try:
            loaded = point.load()  # type: ignore[attr-defined]
            method = loaded() if callable(loaded) and not isinstance(loaded, Method) else loaded
        except Exception as error:  # foreign code: whatever it raises, the user has to learn which package is broken
            raise UsageError(
                f"entry point {name!r} of group {METHOD_GROUP} cannot be loaded ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(method, Method) or method.name != name:
            raise UsageError(
                f"entry point {name!r} of group {METHOD_GROUP} must give a Method named {name!r}, got {method!r}"
            )
        self.method(method)


def check_mark_kind(method: Method, declared: Kind | None, where: str) -> None:
    """Refuse a mark whose kind contradicts the registry: the kind is measured, not believed.

    An exact method marked approximate is refused too: its quality gate would accept differences that it must not have.
    """
    if declared is None or declared is method.kind:
        return
    if declared is Kind.EXACT and method.kind is Kind.APPROXIMATE:
        raise UsageError(
            f"{where}: {method.name!r} is approximate (it drops or rounds information) and cannot be marked exact: the kind is"
            f" measured, not believed (rule 3.2). Use @pytest.mark.approximate(method={method.name!r}, ...). If the window,"
            " FP8 storage or head layout belongs to the baseline checkpoint itself, it is a contract keyword of an exact"
            " kernel instead: @pytest.mark.exact(method='fused_kernel') with accept.kernel(fn, window=..., kv_dtype=...)."
        )
    raise UsageError(
        f"{where}: {method.name!r} is registered as {method.kind.value} and marked {declared.value};"
        f" use @pytest.mark.{method.kind.value}(method={method.name!r}, ...)"
    )


def check_knobs(method: Method, given: Mapping[str, object], where: str) -> dict[str, object]:
    """Return the complete knob settings of `method`, or raise a `UsageError` that says what is allowed."""
    for name in given:
        if method.knob(name) is None:
            raise UnknownNameError(f"knob of {method.name}", name, [k.name for k in method.knobs], where)
    settings: dict[str, object] = {}
    for knob in method.knobs:
        if knob.name in given:
            settings[knob.name] = _checked(method, knob, given[knob.name], where)
        elif knob.required:
            raise UsageError(f"{where}: {method.name} needs {knob.name}= ({knob.doc})")
        else:
            settings[knob.name] = method.defaults.get(knob.name, knob.default)
    _check_bits(method, settings, where)
    return settings


def _checked(method: Method, knob: Knob, value: object, where: str) -> object:
    allowed = " or ".join(t.__name__ for t in knob.types)
    if value is None and knob.default is None and not knob.required:
        return None
    if isinstance(value, bool) or not isinstance(value, knob.types):
        raise UsageError(f"{where}: {method.name} {knob.name}={value!r} must be {allowed} ({knob.doc})")
    if knob.choices and value not in knob.choices:
        raise UsageError(
            f"{where}: {method.name} {knob.name}={value!r} must be one of {', '.join(map(repr, knob.choices))}"
        )
    if isinstance(value, (int, float)):
        _check_range(method, knob, value, where)
    return value


def _check_range(method: Method, knob: Knob, value: float, where: str) -> None:
    high = knob.high
    if knob.name == "kv_budget" and isinstance(value, float):
        high = 1.0  # a float is a share, an int a number of entries
    too_low = knob.low is not None and (value < knob.low or (knob.low_open and value == knob.low))
    too_high = high is not None and value > high
    if too_low or too_high or value != value:
        low = f"{'greater than' if knob.low_open else 'at least'} {knob.low:g}" if knob.low is not None else ""
        up = f"at most {high:g}" if high is not None else ""
        raise UsageError(
            f"{where}: {method.name} {knob.name}={value!r} must be {' and '.join(filter(None, (low, up)))} ({knob.doc})"
        )


def _check_bits(method: Method, settings: dict[str, object], where: str) -> None:
    if not method.name.startswith("kv") or not method.name[2:].isdigit():
        return
    named = int(method.name[2:])
    if settings.get("bits") is None:
        settings["bits"] = named
    elif settings["bits"] != named:
        raise UsageError(
            f"{where}: {method.name} bits={settings['bits']} contradicts its name; use method='kv{settings['bits']}'"
        )
