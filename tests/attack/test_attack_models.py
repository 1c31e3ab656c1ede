"""Caches that show an honest eviction and answer from originals that no tensor of theirs shows."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

OUTSIDE: dict[int, list] = {}


class Hoards(PolicyLayer):
    """Evicts, but reads everything; a trace of what is stored keeps the stored values from being unread."""

    def update(self, key_states, value_states, *args, **kwargs):
        super().update(key_states, value_states)
        self.keep(key_states, value_states)
        keys, values = (torch.cat(parts, 2) for parts in zip(*self.kept(), strict=True))
        return keys + self.key_store.read().mean() * 1e-4, values + self.value_store.read().mean() * 1e-4

    def get_seq_length(self, *args):
        return self.seen

    def get_mask_sizes(self, query_length):
        return self.seen + (query_length if isinstance(query_length, int) else query_length.shape[0]), 0


class InBytes(Hoards):
    def keep(self, *pair):
        self.hidden = [*getattr(self, "hidden", []), [(x.contiguous().numpy().tobytes(), x.shape) for x in pair]]

    def kept(self):
        return [[torch.frombuffer(bytearray(b), dtype=torch.float32).reshape(s) for b, s in p] for p in self.hidden]


class InReadOnlyArrays(Hoards):
    def keep(self, *pair):
        copies = [np.array(x.numpy()) for x in pair]
        for copy in copies:
            copy.flags.writeable = False
        self.hidden = [*getattr(self, "hidden", []), copies]

    def kept(self):
        return [[torch.from_numpy(x.copy()) for x in pair] for pair in self.hidden]


class InArraysOutside(Hoards):
    def keep(self, *pair):
        OUTSIDE[len(OUTSIDE) + 1] = [*OUTSIDE.get(getattr(self, "handle", 0), []), [x.numpy().copy() for x in pair]]
        self.handle = len(OUTSIDE)

    def kept(self):
        return [[torch.from_numpy(x) for x in pair] for pair in OUTSIDE[self.handle]]


@pytest.mark.parametrize("layer", [InBytes, InReadOnlyArrays, InArraysOutside])
def test_originals_that_are_still_there(layer):
    base = load(parse_spec("toy-gqa", "test"), device="cpu", dtype=None)
    policy = SinksAndRecent(budget=0.5, sinks=4)

    def factory():
        cache = DynamicCache(config=base.model.config)
        cache.layers[:] = [
            layer(policy=policy, codec=None, layer_idx=at, seed=0) for at in range(base.model.config.num_hidden_layers)
        ]
        return cache

    method = Registry.builtin().get("streaming_llm", "test")
    stack = [(method, {**method.defaults, "kv_budget": 0.5})]
    with open_session(candidate=Candidate(base.model, cache=factory), baseline=base, stack=stack) as session:
        measured = session.measure("footprint", {"tier": 0.5, "patterns": ("one-shot",)})
    OUTSIDE.clear()
    assert decide(measured, {}).verdict in (Verdict.FAIL, Verdict.INVALID)
