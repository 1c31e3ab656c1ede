"""An example extension: a KV method that keeps cluster centres, with one knob."""

from pytest_attnaccept import Kind, Knob, Layer, Method, Surface


def clustered_kv() -> Method:
    """Return the method; called when its name is first used."""
    return Method(
        name="clustered_kv",
        kind=Kind.APPROXIMATE,
        layer=Layer.CONTENT,
        surface=Surface.MODEL,
        note="keys and values are replaced by cluster centres",
        knobs=(Knob(name="clusters", types=(int,), doc="centres kept per head", default=64, worst="lower", low=1),),
    )


def misnamed() -> Method:
    """Return a method whose name is not that of its entry point."""
    return Method(name="other", kind=Kind.EXACT, layer=Layer.KERNEL, surface=Surface.KERNEL, note="")
