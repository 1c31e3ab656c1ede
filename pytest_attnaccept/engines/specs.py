"""What a model SPEC means: an embedded name, ``smollm2-135m``, a directory, a Hub name, or a mapping around one.

``mha-twin:SPEC`` is the GQA model SPEC with its KV heads repeated: the same function with the cache of MHA.

Reading a spec loads nothing; `loading.load` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError, suggest

__all__ = ["EMBEDDED", "SMOLLM2", "TWIN", "ModelSpec", "embedded_path", "parse_spec"]

EMBEDDED = ("toy-mha", "toy-gqa", "toy-mla", "toy-linear", "toy-mamba")
SMOLLM2 = "smollm2-135m"
TWIN = "mha-twin:"
_FIELDS = ("spec", "revision", "dtype", "device_map", "attn_implementation", "trust_remote_code", "tokenizer")
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Which model to load and how.

    Attributes
    ----------
    spec
        Embedded name, ``smollm2-135m``, directory or Hub name; ``mha-twin:`` before it asks for its MHA twin.
    dtype
        Name of a torch dtype; None: the session's.
    trust_remote_code
        Runs code of the model's repository; recorded in the fingerprint.
    tokenizer
        Directory or Hub name of another tokenizer; None: the model's own.
    """

    spec: str
    revision: str | None = None
    dtype: str | None = None
    device_map: object = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    tokenizer: str | None = None

    @property
    def is_twin(self) -> bool:
        """Whether the MHA twin of the model is meant, not the model."""
        return self.spec.startswith(TWIN)

    @property
    def source(self) -> str:
        """Name of the model whose weights are loaded."""
        return self.spec.removeprefix(TWIN)

    @property
    def is_embedded(self) -> bool:
        """Whether the weights ship with this package."""
        return self.source in EMBEDDED


def parse_spec(entry: str | Mapping[str, object], where: str = "") -> ModelSpec:
    """Return the model that `entry` names.

    Raises
    ------
    UnknownNameError
        For an unknown key, or a bare name that looks like a misspelled embedded one.
    ContractError
        For a value of the wrong type.
    """
    fields: Mapping[str, object] = {"spec": entry} if isinstance(entry, str) else entry
    for key in fields:
        if key not in _FIELDS:
            raise UnknownNameError("key of a model entry", str(key), _FIELDS, where)
    name = fields.get("spec")
    if not isinstance(name, str) or not name.removeprefix(TWIN).strip():
        known = ", ".join((*EMBEDDED, SMOLLM2))
        raise ContractError(f"{where or 'model'}: spec={name!r} must name a model ({known}, a path, a Hub name)")
    trust = fields.get("trust_remote_code", False)
    if not isinstance(trust, bool):
        raise ContractError(f"{where or name}: trust_remote_code={trust!r} must be true or false")
    texts: dict[str, str | None] = {}
    for key in ("revision", "dtype", "attn_implementation", "tokenizer"):
        value = fields.get(key)
        if value is not None and not isinstance(value, str):
            raise ContractError(f"{where or name}: {key}={value!r} must be text")
        texts[key] = value
    _refuse_misspelling(name, where)
    return ModelSpec(spec=name, device_map=fields.get("device_map"), trust_remote_code=trust, **texts)


def _refuse_misspelling(name: str, where: str) -> None:
    """Refuse ``toy-gpa`` at once: asking the Hub for it would end in a network error that hides the typo."""
    known, name = (*EMBEDDED, SMOLLM2), name.removeprefix(TWIN)
    if name in known or "/" in name or Path(name).exists():
        return
    if name.startswith(("toy-", "smollm")) or suggest(name, [k for k in known if k[:3] == name[:3]]):
        raise UnknownNameError("model", name, known, where)


def embedded_path(name: str) -> Path:
    """Return the directory of an embedded model, in an installed package or a checkout.

    Raises
    ------
    EngineError
        When its weights are not there.
    """
    places = (_PACKAGE / "_data" / "models" / name, _PACKAGE.parent / "fixtures" / "models" / name)
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise EngineError(
        f"the embedded model {name!r} is not part of this installation: reinstall the package, or train it with the"
        " recipe in fixtures/"
    )
