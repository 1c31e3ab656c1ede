"""Engines run models for the checks; `hf` is transformers, everything measured through its cache.

Importing this package loads nothing heavy; its modules import torch and transformers.
"""

from __future__ import annotations
