"""Whether an object that keeps state between calls stays right on the second call: caches, prefix caches, decoders.

Positions
---------
1. The oracle of a cache is a plain list of tokens per sequence, attended in float64; nothing of it comes from the
   candidate.
2. A program is data: it is generated from a seed, run, shrunk and printed by this package, so that the same seed means
   the same programs on every machine and under every version of every dependency.
3. Nothing here decides a verdict; every check returns a `Measured`.
"""
