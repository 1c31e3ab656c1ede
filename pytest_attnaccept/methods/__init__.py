"""How each method is applied to a transformers decoder: one file per method, one small frozen dataclass.

Every ``pytest_attnaccept.methods.NAME`` has ``apply(model, knobs) -> Applied`` and ``identity(knobs)`` (the knobs at
which the method must change nothing). `stack.apply_stack` composes several of them into one `Candidate`.

Importing this package loads nothing; its modules import torch and are loaded when a model is under test.
"""

from __future__ import annotations
