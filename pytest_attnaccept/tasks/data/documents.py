"""Questions over several documents: HotpotQA and MuSiQue, in their own formats and in that of the Hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_attnaccept.tasks.data.examples import DataFamily, Example, RowError, found_at, need, question, texts

__all__ = ["DOCUMENTS"]

_TOKENS = 32  # an answer is a name, a date or a word; LongBench allows as much for the same data


def _example(
    passages: Sequence[tuple[str, str]], ask: str, answers: tuple[str, ...], support: Sequence[str]
) -> Example:
    """Documents with their titles, then the question; spans are the supporting documents."""
    context, spans = "", []
    for number, (title, text) in enumerate(passages, start=1):
        start = len(context)
        context += f"{chr(10) * 2 if context else ''}Document {number} ({title}): {text.strip()}"
        if title in support:
            spans.append((start, len(context)))
    if answers[0] not in ("yes", "no") and not any(found_at(context.lower(), answer.lower()) for answer in answers):
        raise RowError(f"the answer {answers[0]!r} is said in no document")
    asked = question(
        f"\n\nAnswer from the documents in a few words.\nQuestion: {ask}", "\nAnswer:", answers, "qa_f1", _TOKENS
    )
    return Example(
        context=context, questions=(asked,), spans=tuple(spans), chance=0.5 if answers[0] in ("yes", "no") else 0.0
    )


def _hotpotqa(row: Mapping[str, Any], fit: Callable[[str], int]) -> Example:
    del fit
    given = need(row, "context", (list, dict))
    support = row.get("supporting_facts") or []
    if isinstance(given, Mapping):  # columns, as the Hub stores it
        pairs = list(zip(given["title"], given["sentences"], strict=True))
        names = [str(title) for title in support.get("title", ())] if isinstance(support, Mapping) else []
    else:
        pairs, names = [(title, sentences) for title, sentences in given], [str(fact[0]) for fact in support]
    passages = [(str(title), "".join(sentences)) for title, sentences in pairs]
    if len(passages) < 3:
        raise RowError(f"only {len(passages)} documents: nothing distracts")
    if not set(names) <= {title for title, _ in passages}:
        raise RowError("a supporting document is not in the context")
    return _example(passages, need(row, "question"), (need(row, "answer"),), names)


def _musique(row: Mapping[str, Any], fit: Callable[[str], int]) -> Example:
    del fit
    if row.get("answerable") is False:
        raise RowError("not answerable")
    paragraphs = need(row, "paragraphs", list)
    passages = [(str(p["title"]), str(p["paragraph_text"])) for p in paragraphs]
    support = [str(p["title"]) for p in paragraphs if p.get("is_supporting")]
    answers = (need(row, "answer"), *texts(row.get("answer_aliases") or (), "answer_aliases"))
    return _example(passages, need(row, "question"), answers, support)


DOCUMENTS: Final[tuple[DataFamily, ...]] = (
    DataFamily(name="hotpotqa", summary="HotpotQA, distractor setting", convert=_hotpotqa, complete=7405, cut=True),
    DataFamily(name="musique", summary="MuSiQue, answerable", convert=_musique, complete=2417, cut=True),
)
