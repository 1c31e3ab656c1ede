"""Offline task families whose answers are known by construction: seeded, fitted to a length, the same everywhere."""

from __future__ import annotations

from pytest_attnaccept.tasks.families import Family, generate, task_families
from pytest_attnaccept.tasks.items import KeySpan, Parameter, Question, TaskItem
from pytest_attnaccept.tasks.ranges import Range

__all__ = ["Family", "KeySpan", "Parameter", "Question", "Range", "TaskItem", "generate", "task_families"]
