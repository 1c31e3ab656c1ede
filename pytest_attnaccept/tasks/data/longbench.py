"""LongBench v1: all 21 tasks with prompt, metric and length of the answer.

Prompts are in our own words; metrics and generation lengths are those of the benchmark (arXiv 2308.14508). The context is
given before the question, so the question is asked after compression. Few-shot tasks, and both of the code tasks, continue
the context. Only the first generated line counts where the benchmark cuts there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_attnaccept.tasks.data.examples import DataFamily, Example, RowError, found_at, need, question, texts

__all__ = ["LONGBENCH", "TASKS", "Task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: what stands before and after the context, the metric, the length of an answer and of the data set."""

    head: str
    tail: str
    prefix: str
    metric: str
    tokens: int
    rows: int = 200
    chinese: bool = False


_SHORT = "\n\nAnswer from {0} in a few words and add nothing else.\nQuestion: {{input}}\n"
_JOIN = Task(
    head="Several passages follow.\n\n", tail=_SHORT.format("the passages"), prefix="Answer:", metric="qa_f1", tokens=32
)
_EXAMPLES = "Continue in the manner of the examples.\n\n"
_REPORT = Task(
    head="Report:\n", tail="\n\nSummarize the report on one page.\n", prefix="Summary:", metric="rouge_l", tokens=512
)

TASKS: Final[Mapping[str, Task]] = {
    "narrativeqa": Task(
        head="Story:\n", tail=_SHORT.format("the story"), prefix="Answer:", metric="qa_f1", tokens=128
    ),
    "qasper": Task(
        head="Article:\n",
        tail='\n\nAnswer from the article in a few words; say "yes" or "no" to such a question and "unanswerable" where the'
        " article does not tell.\nQuestion: {input}\n",
        prefix="Answer:",
        metric="qa_f1",
        tokens=128,
    ),
    "multifieldqa_en": Task(
        head="Text:\n", tail=_SHORT.format("the text"), prefix="Answer:", metric="qa_f1", tokens=64, rows=150
    ),
    "multifieldqa_zh": Task(
        head="文章：\n", tail="\n\n请根据文章简短回答，不要多说。\n问题：{input}\n", prefix="回答：", metric="qa_f1_zh",
        tokens=64, chinese=True,
    ),
    "hotpotqa": _JOIN,
    "2wikimqa": _JOIN,
    "musique": _JOIN,
    "dureader": Task(
        head="文章：\n", tail="\n\n请根据文章回答。\n问题：{input}\n", prefix="回答：", metric="rouge_l_zh", tokens=128,
        chinese=True,
    ),
    "gov_report": _REPORT,
    "qmsum": Task(
        head="Minutes of a meeting:\n", tail="\n\nAnswer from the minutes in a few sentences.\nQuestion: {input}\n",
        prefix="Answer:", metric="rouge_l", tokens=512,
    ),
    "multi_news": Task(
        head="News:\n", tail="\n\nSummarize all of the news on one page.\n", prefix="Summary:", metric="rouge_l", tokens=512
    ),
    "vcsum": Task(
        head="会议记录：\n", tail="\n\n请总结会议内容。\n", prefix="总结：", metric="rouge_l_zh", tokens=512, chinese=True
    ),
    "trec": Task(head=_EXAMPLES, tail="\n{input}", prefix="", metric="class", tokens=64),
    "triviaqa": Task(head=_EXAMPLES, tail="\n\n{input}", prefix="", metric="qa_f1_line", tokens=32),
    "samsum": Task(head=_EXAMPLES, tail="\n\n{input}", prefix="", metric="rouge_l_line", tokens=128),
    "lsht": Task(head="请照例子继续。\n\n", tail="\n{input}", prefix="", metric="class", tokens=64, chinese=True),
    "passage_count": Task(
        head="", tail="\n\nSome of these paragraphs are said more than once. How many different ones are there?\n",
        prefix="The number is", metric="number", tokens=32,
    ),
    "passage_retrieval_en": Task(
        head="", tail="\n\nWhich of the paragraphs does this abstract belong to?\n\n{input}\n\n", prefix="It belongs to",
        metric="number", tokens=32,
    ),
    "passage_retrieval_zh": Task(
        head="", tail="\n\n下面的摘要属于哪一段？\n\n{input}\n\n", prefix="答案是：", metric="number", tokens=32, chinese=True
    ),
    "lcc": Task(head="", tail="", prefix="", metric="code", tokens=64, rows=500),
    "repobench-p": Task(head="", tail="\n{input}", prefix="", metric="code", tokens=64, rows=500),
}  # fmt: skip


def _paragraphs(task: Task, context: str, answer: str) -> list[str]:
    """The paragraphs that a retrieval task chooses among ("Paragraph 7", "段落7"), none for other tasks."""
    kind = answer.rstrip("0123456789")
    if task.metric != "number" or not kind.strip():
        return []
    return list(dict.fromkeys(re.findall(rf"^({re.escape(kind)}\d+)[:：]", context, flags=re.M)))


def _space(task: Task, tail: str) -> str:
    """What stands before an answer: a space after English words ("Type:", "Answer:"), nothing at the start of a line."""
    return "" if task.chinese or (task.prefix or tail)[-1].isspace() else " "


def _converter(name: str, task: Task) -> Callable[[Mapping[str, Any], Callable[[str], int]], Example]:
    def convert(row: Mapping[str, Any], fit: Callable[[str], int]) -> Example:
        del fit  # lengths of answers are fixed by the benchmark
        if row.get("dataset", name) not in (name, f"{name}_e"):
            raise RowError(f"belongs to {row['dataset']!r}")
        given, answers = need(row, "context"), texts(need(row, "answers", list), "answers")
        context, tail = task.head + given, task.tail
        if "{input}" in tail:
            tail = tail.format(input=need(row, "input"))
        if not tail:
            context, _, tail = context.rstrip("\n").rpartition("\n")
            tail = f"\n{tail}"
        if task.metric == "code" and not tail.endswith("\n"):
            tail += "\n"  # the answer is the next line, not the rest of this one
        classes = list(dict.fromkeys(row.get("all_classes") or _paragraphs(task, given, answers[0])))
        if (task.metric == "class" or classes) and answers[0] not in classes:
            raise RowError(f"the answer {answers[0]!r} is none of all_classes")
        ask = question(
            tail, task.prefix, answers, task.metric, task.tokens,
            foils=tuple(c for c in classes if c != answers[0]), space=_space(task, tail),
        )  # fmt: skip
        return Example(
            context=context,
            questions=(ask,),
            spans=found_at(context, *(a.rstrip("。.") for a in ask.references))[:1],
            chance=1.0 / len(classes) if classes else 0.0,
        )

    return convert


LONGBENCH: Final[tuple[DataFamily, ...]] = tuple(
    DataFamily(
        name=f"longbench.{name}",
        summary=f"LongBench v1 {name}",
        convert=_converter(name, task),
        complete=task.rows,
        cut=True,
    )
    for name, task in TASKS.items()
)
