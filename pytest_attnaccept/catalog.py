"""The methods that ship with the package, as values: kind, layer, knobs, worst-case direction, hardware.

One row per method of the acceptance protocol this product implements. Nothing is imported to list them; `applies` names
the function that applies a method to a transformers model and is loaded only when a model is under test.
"""

from __future__ import annotations

from pytest_attnaccept.taxonomy import Kind, Knob, Layer, Method, Surface

__all__ = ["BUILTIN_METHODS"]

_KV_BUDGET = Knob(
    name="kv_budget",
    types=(float, int),
    doc="share of the context's entries kept per layer, in (0, 1], or a number of entries; sinks and recent ones count",
    required=True,
    worst="lower",
    identity=1.0,
    low=0.0,
    low_open=True,
)
_SINKS = Knob(name="sinks", types=(int,), doc="first tokens that are always kept", default=4, worst="lower", low=0)
_WINDOW = Knob(
    name="window",
    types=(int,),
    doc="most recent keys a query sees, itself included",
    required=True,
    worst="lower",
    low=1,
)
_GROUP = Knob(name="group_size", types=(int,), doc="values that share one scale", default=None, worst="higher", low=1)
_RESIDUAL = Knob(
    name="residual", types=(int,), doc="most recent tokens kept in full precision", default=0, worst="lower", low=0
)
_AXIS = Knob(
    name="axis",
    types=(str,),
    doc="share a scale along a token ('token') or along a channel ('channel')",
    default=None,
    choices=("token", "channel"),
)
_POSITIONS = Knob(
    name="positions",
    types=(str,),
    doc="keys count inside the cache ('cache', the paper's and the default) or in the text ('text')",
    default=None,
    choices=("cache", "text"),
)
_OBSERVATION = Knob(
    name="observation", types=(int,), doc="last queries that vote; None: 32", default=None, worst="lower", low=1
)
_POOL = Knob(
    name="pool",
    types=(int,),
    doc="neighbours over which votes are averaged, odd; None: 5",
    default=None,
    worst="lower",
    low=1,
)
_BITS = Knob(
    name="bits",
    types=(int,),
    doc="bits of a stored value; must agree with the method's name",
    worst="lower",
    low=1,
    high=16,
)

# Changes nothing of a model: the check `speculation` asks for the drafts.
_DRAFTS = "pytest_attnaccept.checks.model_speculation:apply"


def _exact(name: str, layer: Layer, surface: Surface, note: str, **more: object) -> Method:
    return Method(name=name, kind=Kind.EXACT, layer=layer, surface=surface, note=note, **more)  # type: ignore[arg-type]


def _evicts(name: str, note: str, *knobs: Knob, control: bool = False) -> Method:
    return Method(
        name=name,
        kind=Kind.APPROXIMATE,
        layer=Layer.CONTENT,
        surface=Surface.MODEL,
        note=note,
        knobs=knobs,
        applies=f"pytest_attnaccept.methods.{name}:apply",
        control=control,
    )


def _numerics(name: str, note: str, *knobs: Knob, applies: bool = False, **more: object) -> Method:
    return Method(
        name=name,
        kind=Kind.APPROXIMATE,
        layer=Layer.NUMERICS,
        surface=Surface.MODEL,
        note=note,
        knobs=knobs,
        applies=f"pytest_attnaccept.methods.{name}:apply" if applies else "",
        **more,  # type: ignore[arg-type]
    )


BUILTIN_METHODS: tuple[Method, ...] = (
    _exact(
        "flash_attention",
        Layer.KERNEL,
        Surface.KERNEL,
        "tiled attention with an online softmax; equal within rounding",
        aliases=("fa1", "fa2", "fa3"),
        hardware="fa3: CUDA compute capability 9.0 or higher",
    ),
    _exact("mqa", Layer.DIMENSION, Surface.KERNEL, "one KV head for all query heads, against its expanded form"),
    _exact("gqa", Layer.DIMENSION, Surface.KERNEL, "query heads share KV heads, against the expanded form"),
    _exact("mla", Layer.DIMENSION, Surface.KERNEL, "latent KV, absorbed against expanded form"),
    _exact("paged_attention", Layer.LAYOUT, Surface.CACHE, "KV in pages behind a block table"),
    _exact("copy_on_write", Layer.LAYOUT, Surface.CACHE, "forked sequences share pages until one writes"),
    _exact(
        "prefix_cache",
        Layer.LAYOUT,
        Surface.PREFIX_CACHE,
        "KV reused across requests with an equal prefix and identity",
    ),
    _exact(
        "speculative_decoding",
        Layer.DECODING,
        Surface.DECODER,
        "draft and verify; equal distribution",
        applies=_DRAFTS,
    ),
    _exact(
        "prompt_lookup",
        Layer.DECODING,
        Surface.DECODER,
        "drafts copied from the prompt; equal distribution",
        applies=_DRAFTS,
    ),
    _exact("continuous_batching", Layer.SCHEDULING, Surface.MODEL, "requests join and leave a running batch"),
    _exact("chunked_prefill", Layer.SCHEDULING, Surface.MODEL, "the prompt is prefilled in pieces"),
    _exact("preemption", Layer.SCHEDULING, Surface.MODEL, "a request is stopped and resumed by recompute or swap"),
    _exact("torch_compile", Layer.KERNEL, Surface.KERNEL, "the same graph compiled"),
    _exact("fused_kernel", Layer.KERNEL, Surface.KERNEL, "several operations in one kernel"),
    _evicts("sliding_window", "only the most recent keys are visible", _WINDOW),
    _evicts("streaming_llm", "attention sinks and a recent window", _KV_BUDGET, _SINKS, _POSITIONS),
    _evicts("h2o", "heavy hitters by accumulated attention, and recent keys", _KV_BUDGET, _SINKS),
    _evicts("snapkv", "keys that the last queries attend to", _KV_BUDGET, _SINKS, _OBSERVATION, _POOL),
    _evicts("tova", "keys that the current query attends to", _KV_BUDGET, _SINKS),
    _evicts("pyramidkv", "snapkv with a budget that falls with depth", _KV_BUDGET, _SINKS, _OBSERVATION, _POOL),
    _evicts("random_eviction", "control: random keys are kept", _KV_BUDGET, _SINKS, control=True),
    _numerics(
        "fp8_attention",
        "Q, K, V and P in E4M3 with scales; emulated in float32",
        Knob(
            name="granularity",
            types=(str,),
            doc="what shares one scale",
            default="tensor",
            choices=("tensor", "head", "block"),
        ),
        hardware="CUDA compute capability 8.9 or higher; emulated on CPU",
        min_capability=(8, 9),
        applies=True,
    ),
    _numerics("kv8", "KV cache in 8 bits", _BITS, _GROUP, _RESIDUAL, _AXIS, applies=True),
    _numerics("kv4", "KV cache in 4 bits", _BITS, _GROUP, _RESIDUAL, _AXIS, applies=True),
    _numerics("kv2", "KV cache in 2 bits", _BITS, _GROUP, _RESIDUAL, _AXIS, applies=True),
    _numerics(
        "w4a16",
        "weights of the linear layers in 4 bits, activations in 16",
        _GROUP,
        Knob(
            name="scheme",
            types=(str,),
            doc="codes with a zero point ('asymmetric', the default) or around zero ('symmetric')",
            default=None,
            choices=("asymmetric", "symmetric"),
        ),
        applies=True,
    ),
    _numerics("w8a8", "weights and activations of the linear layers in 8 bits", applies=True),
    Method(
        name="linear_attention",
        kind=Kind.ARCHITECTURE,
        layer=Layer.ARCHITECTURE,
        surface=Surface.MODEL,
        note="softmax replaced by a kernel feature map; a new model",
    ),
    Method(
        name="mamba",
        kind=Kind.ARCHITECTURE,
        layer=Layer.ARCHITECTURE,
        surface=Surface.MODEL,
        note="state space model; a new model",
    ),
    Method(
        name="checkpoint_conversion",
        kind=Kind.ARCHITECTURE,
        layer=Layer.ARCHITECTURE,
        surface=Surface.MODEL,
        note="a checkpoint converted to another head layout (MHA to GQA or MLA); a new model",
    ),
)
