"""Two recorded lm-eval runs: the verdict, the exit status, and every input that must not end in a wrong PASS."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_attnaccept.compare import compare_logs, compare_main, measure_logs
from pytest_attnaccept.errors import RecordError, UsageError
from pytest_attnaccept.logs import read_samples
from pytest_attnaccept.measurement import PairedCounts, PairedScores
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Verdict

RECORDED = Path(__file__).parent / "data" / "lm_eval"


def method(name):
    return Registry.builtin().get(name)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def sample(i, score, *, metric="exact_match", answer=None, filter_name="none", generative=True, **changes):
    """Make one line as lm-eval 0.4.13 writes it."""
    prompt = f"question {i}"
    answer = f"answer {score} to {i}" if answer is None else answer
    if generative:
        arguments = {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n"]}}}
        answers = [[answer]]
    else:
        arguments = {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" choice {k}"} for k in range(2)}
        answers = [[["-1.25", "False"]], [["-2.5", "True"]]]
    entry = {
        "doc_id": i,
        "doc": {"q": prompt, "passage": i // 5},
        "target": "x",
        "arguments": arguments,
        "resps": answers,
        "filtered_resps": [answer],
        "filter": filter_name,
        "metrics": [metric],
        "doc_hash": digest(prompt),
        "prompt_hash": digest(prompt),
        "target_hash": digest("x"),
        metric: score,
    }
    return {**entry, **changes}


def write(path, samples):
    path.write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")
    return path


@pytest.fixture
def logs(tmp_path):
    """Give a writer of (baseline, candidate) paths."""

    def make(base, cand):
        return write(tmp_path / "base.jsonl", base), write(tmp_path / "cand.jsonl", cand)

    return make


def scored(scores, **more):
    return [sample(i, s, **more) for i, s in enumerate(scores)]


RIGHT = [1.0] * 180 + [0.0] * 20


class TestRecordedByLmEval:
    def test_pass_fail_and_their_exit_status(self, capsys):
        good = [str(RECORDED / f"samples_sums_{side}.jsonl") for side in ("base", "cand")]
        bad = [str(RECORDED / f"samples_sums_{side}.jsonl") for side in ("base", "bad")]
        assert compare_main([*good, "--margin", "0.1"]) == 0
        assert compare_main([*bad, "--margin", "0.1"]) == 1
        assert compare_main([*good, "--margin", "0.02"]) == 2
        out = capsys.readouterr().out
        assert "exact_match[strict-match]" in out
        assert "exact_match[flexible-extract]" in out
        assert "1 lost, 0 gained" in out
        assert "needed: about" in out

    def test_the_worst_filter_decides_and_one_can_be_named(self):
        pair = RECORDED / "samples_sums_base.jsonl", RECORDED / "samples_sums_cand.jsonl"
        both = compare_logs(*pair, 0.1)
        assert [m.name for m in both.decision.metrics] == ["exact_match[strict-match]", "exact_match[flexible-extract]"]
        assert len(compare_logs(*pair, 0.1, filter_name="strict-match").pairs) == 1
        assert len(compare_logs(*pair, 0.1, metric="exact_match,flexible-extract").pairs) == 1
        with pytest.raises(RecordError, match="no rows of filter 'loose'"):
            compare_logs(*pair, 0.1, filter_name="loose")

    def test_log_likelihood_tasks_are_refused_for_kv_methods_with_the_reason(self):
        pair = RECORDED / "samples_bigger_base.jsonl", RECORDED / "samples_bigger_bad.jsonl"
        for name in ("kv4", "kv8", "h2o", "streaming_llm", "sliding_window"):
            result = compare_logs(*pair, 0.1, method=method(name))
            assert result.verdict is Verdict.INVALID  # also where the answers got much worse
            assert "never reads the compressed cache" in result.lines[0]
            assert "generate_until" in result.lines[0]
        assert compare_logs(*pair, 0.1, method=method("w4a16")).verdict is Verdict.FAIL

    def test_generative_tasks_serve_kv_methods(self):
        pair = RECORDED / "samples_sums_base.jsonl", RECORDED / "samples_sums_cand.jsonl"
        assert compare_logs(*pair, 0.1, method=method("kv4")).verdict is Verdict.PASS

    def test_kinds_of_task_are_recognised(self):
        assert {row.generative for row in read_samples(RECORDED / "samples_sums_base.jsonl").rows} == {True}
        assert {row.generative for row in read_samples(RECORDED / "samples_bigger_base.jsonl").rows} == {False}

    def test_module_on_the_command_line(self):
        command = [sys.executable, "-m", "pytest_attnaccept", "compare"]
        pair = [str(RECORDED / "samples_bigger_base.jsonl"), str(RECORDED / "samples_bigger_bad.jsonl")]
        done = subprocess.run([*command, *pair, "--margin", "0.1"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stdout.startswith("attnaccept compare: FAIL: acc")


class TestVerdicts:
    def test_harmless_passes_and_harm_fails(self, logs):
        few = list(RIGHT)
        few[3] = 0.0
        assert compare_logs(*logs(scored(RIGHT), scored(few)), 0.05).verdict is Verdict.PASS
        many = [0.0] * 60 + RIGHT[60:]
        result = compare_logs(*logs(scored(RIGHT), scored(many)), 0.05)
        assert result.verdict is Verdict.FAIL
        assert "60 lost, 0 gained" in "\n".join(result.lines)

    def test_undecided_says_what_would_decide(self, logs):
        few = [0.0] * 4 + RIGHT[4:]
        result = compare_logs(*logs(scored(RIGHT), scored(few)), 0.02)
        assert result.verdict is Verdict.INCONCLUSIVE
        assert any("needed: about" in line for line in result.lines)
        worse = [0.0] * 9 + RIGHT[9:]
        lines = compare_logs(*logs(scored(RIGHT), scored(worse)), 0.03).lines
        assert any("hopeless" in line for line in lines)

    def test_twenty_items_never_pass_two_points(self, logs):
        assert (
            compare_logs(*logs(scored([1.0] * 20), scored([1.0] * 20, answer="y")), 0.02).verdict
            is Verdict.INCONCLUSIVE
        )

    def test_scores_between_zero_and_one_use_the_bounded_bound(self, logs):
        f1 = [0.25 + 0.5 * (i % 2) for i in range(300)]
        lower = [max(0.0, s - 0.01) for s in f1]
        result = compare_logs(*logs(scored(f1, metric="f1"), scored(lower, metric="f1")), 0.05, metric="f1")
        assert result.verdict is Verdict.PASS
        assert isinstance(result.pairs[0].gate, PairedScores)

    def test_order_of_lines_does_not_matter(self, logs):
        few = [0.0] * 5 + RIGHT[5:]
        straight = compare_logs(*logs(scored(RIGHT), scored(few)), 0.05)
        shuffled = compare_logs(*logs(scored(RIGHT), scored(few)[::-1]), 0.05)
        assert straight.decision.metrics == shuffled.decision.metrics

    def test_baseline_at_the_floor_or_at_chance_is_invalid(self, logs):
        bad = [1.0] * 5 + [0.0] * 395
        assert compare_logs(*logs(scored(bad), scored(bad, answer="z")), 0.02).verdict is Verdict.INVALID
        guess = [1.0] * 110 + [0.0] * 290
        pair = logs(scored(guess), scored(guess, answer="z"))
        assert compare_logs(*pair, 0.03, chance=0.25).verdict is Verdict.INVALID
        assert compare_logs(*pair, 0.03).verdict is Verdict.PASS

    @pytest.mark.parametrize("margin", [0.0, -0.02, 1.0, 2.0, float("nan")])
    def test_margins_that_are_no_fraction_are_refused(self, logs, margin):
        pair = logs(scored(RIGHT), scored(RIGHT))
        with pytest.raises(UsageError, match=r"2 points are 0\.02"):
            compare_logs(*pair, margin)
        assert compare_main([*map(str, pair), "--margin", str(margin)]) == 2


class TestPitfall13Pairing:
    def test_another_prompt_is_another_test(self, logs):
        changed = scored(RIGHT)
        changed[7]["prompt_hash"] = digest("few-shot question 7")
        with pytest.raises(RecordError, match=r"cand.jsonl:8: the prompt of document 7 differs"):
            compare_logs(*logs(scored(RIGHT), changed), 0.05)

    def test_another_target_is_another_test(self, logs):
        changed = scored(RIGHT)
        changed[0]["target_hash"] = digest("y")
        with pytest.raises(RecordError, match="the target of document 0 differs"):
            compare_logs(*logs(scored(RIGHT), changed), 0.05)

    def test_other_generation_settings_are_another_test(self, logs):
        """A candidate that may write longer answers is not the same test, whatever its prompt."""
        longer = scored(RIGHT)
        for entry in longer:
            entry["arguments"]["gen_args_0"]["arg_1"] = {"until": ["\n"], "max_gen_toks": 4096}
        with pytest.raises(RecordError, match="other generation settings"):
            compare_logs(*logs(scored(RIGHT), longer), 0.05)

    def test_other_documents_are_another_task(self, logs):
        other = [sample(i + 1000, 1.0) for i in range(200)]
        with pytest.raises(RecordError, match="shares no document"):
            compare_logs(*logs(scored(RIGHT), other), 0.05)

    def test_missing_answers_of_the_candidate_are_lost(self, logs):
        result = compare_logs(*logs(scored(RIGHT), scored(RIGHT)[:150]), 0.05)
        assert result.verdict is Verdict.FAIL
        assert result.pairs[0].lost_answers == 50
        assert "50 of 200 items have no usable candidate answer" in "\n".join(result.lines)

    @pytest.mark.parametrize("nothing", [float("nan"), None, "nan", "N/A"])
    def test_unusable_scores_of_the_candidate_are_lost_or_refused(self, logs, nothing):
        broken = [nothing] * 40 + RIGHT[40:]
        pair = logs(scored(RIGHT), scored(broken))
        if nothing == "N/A":
            with pytest.raises(RecordError, match="no score of one item"):
                compare_logs(*pair, 0.05)
        else:
            assert compare_logs(*pair, 0.05).verdict is Verdict.FAIL

    def test_lost_answers_count_also_where_the_baseline_was_wrong(self, logs):
        measured, _ = measure_logs(*logs(scored(RIGHT), scored([*RIGHT[:190], *[None] * 10])))
        gate = measured.gates[0]
        assert isinstance(gate, PairedScores)
        assert sum(gate.losses) == 10

    def test_missing_answers_of_the_baseline_are_void(self, logs):
        holes = list(RIGHT)
        holes[:30] = [float("nan")] * 30
        result = compare_logs(*logs(scored(holes), scored(RIGHT)), 0.05)
        assert result.pairs[0].void == 30
        assert result.pairs[0].items == 170
        assert result.verdict is Verdict.INCONCLUSIVE, "the candidate's losses may be among what the baseline lacks"
        few = list(RIGHT)
        few[:4] = [None] * 4
        assert compare_logs(*logs(scored(few), scored(RIGHT)), 0.05).verdict is Verdict.PASS
        shorter = compare_logs(*logs(scored(RIGHT)[:170], scored(RIGHT)), 0.05)
        assert shorter.pairs[0].void == 30

    def test_a_baseline_without_any_score_is_refused(self, logs):
        with pytest.raises(RecordError, match="no item has a usable"):
            compare_logs(*logs(scored([None] * 50), scored([1.0] * 50)), 0.05)

    def test_a_log_of_two_runs_is_refused(self, logs):
        twice = scored(RIGHT) + scored(RIGHT)
        with pytest.raises(RecordError, match="more than one run"):
            compare_logs(*logs(scored(RIGHT), twice), 0.05)
        with pytest.raises(RecordError, match="more than one run"):
            compare_logs(*logs(twice, scored(RIGHT)), 0.05)

    def test_repeated_documents_count_once(self, logs):
        """One document 200 times over is one item, however many lines it has."""
        same = {"doc_hash": "d", "prompt_hash": "p", "target_hash": "t"}
        base = [sample(i, 1.0, **same) for i in range(200)]
        result = compare_logs(*logs(base, [sample(i, 1.0, answer="b", **same) for i in range(200)]), 0.05)
        assert result.pairs[0].items == 1
        assert result.verdict is Verdict.INCONCLUSIVE

    def test_items_of_one_passage_are_averaged_on_demand(self, logs):
        result = compare_logs(*logs(scored(RIGHT), scored(RIGHT, answer="b")), 0.1, cluster="passage")
        assert result.pairs[0].items == 40
        with pytest.raises(RecordError, match=r"has no field 'pasage'.*passage"):
            compare_logs(*logs(scored(RIGHT), scored(RIGHT)), 0.1, cluster="pasage")

    def test_old_logs_without_hashes_are_paired_by_content(self, logs):
        def old(samples):
            for s in samples:
                for key in ("doc_hash", "prompt_hash", "target_hash", "filter", "metrics"):
                    s.pop(key)
                s["arguments"] = [[s["doc"]["q"], {"until": ["\n"]}]]
            return samples

        few = [0.0] * 3 + RIGHT[3:]
        pair = logs(old(scored(RIGHT)), old(scored(few)))
        assert compare_logs(*pair, 0.05, method=method("kv8")).verdict is Verdict.PASS
        changed = old(scored(RIGHT))
        changed[3]["arguments"][0][0] = "another prompt"
        with pytest.raises(RecordError, match="prompt"):
            compare_logs(*logs(old(scored(RIGHT)), changed), 0.05)


class TestKindsOfAnswers:
    @pytest.mark.parametrize(
        ("answers", "generative"),
        [
            ([["42"]], True),
            ([["a", "b", "c"]], True),
            ([[" The answer is 4"]], True),
            ([[["-1.25", "False"]], [["-2.5", "True"]]], False),
            ([[[-1.25, False]]], False),
            ([["-812.5"]], False),
            ([[-812.5]], False),
            ([], None),
            (None, None),
        ],
    )
    def test_answers_without_their_arguments_are_told_apart(self, tmp_path, answers, generative):
        entry = {"doc_hash": "d", "prompt_hash": "p", "target_hash": "t", "resps": answers, "exact_match": 1.0}
        assert read_samples(write(tmp_path / "x.jsonl", [entry])).rows[0].generative is generative

    def test_lines_with_hashes_and_scores_alone_are_enough(self, logs):
        def bare(scores):
            return [
                {"doc_hash": f"d{i}", "prompt_hash": f"p{i}", "target_hash": "t", "acc": s}
                for i, s in enumerate(scores)
            ]

        pair = logs(bare(RIGHT), bare([0.0, *RIGHT[1:]]))
        assert compare_logs(*pair, 0.05).verdict is Verdict.PASS
        assert compare_logs(*pair, 0.05, method=method("w8a8")).verdict is Verdict.PASS
        refused = compare_logs(*pair, 0.05, method=method("kv8"))
        assert refused.verdict is Verdict.INVALID  # nobody can tell whether these were generated


class TestMetrics:
    @pytest.mark.parametrize("value", [87.5, -0.2, float("inf"), 999])
    def test_scores_outside_zero_and_one_are_refused(self, logs, value):
        with pytest.raises(RecordError, match=r"scores in \[0, 1\]"):
            compare_logs(*logs(scored([value] * 200), scored(RIGHT)), 0.05)

    @pytest.mark.parametrize("value", [[1.0, 2.0], {"a": 1}, "yes"])
    def test_values_that_are_no_score_are_refused(self, logs, value):
        with pytest.raises(RecordError, match="no score of one item"):
            compare_logs(*logs(scored([value] * 200), scored(RIGHT)), 0.05)

    @pytest.mark.parametrize("name", ["word_perplexity", "bits_per_byte", "wer", "brier_score", "edit_distance"])
    def test_metrics_that_are_better_when_lower_are_refused(self, logs, name):
        """Read as a score, a word error rate that rises would look like a gain."""
        pair = logs(scored([0.1] * 200, metric=name), scored([0.5] * 200, metric=name))
        with pytest.raises(RecordError, match="better when lower"):
            compare_logs(*pair, 0.05, metric=name)

    def test_a_constant_score_measures_nothing(self, logs):
        result = compare_logs(*logs(scored([0.5] * 400), scored([0.5] * 400, answer="b")), 0.05)
        assert result.verdict is Verdict.INVALID
        assert "never varies" in result.lines[0]
        perfect = compare_logs(*logs(scored([1.0] * 400), scored([1.0] * 400, answer="b")), 0.05)
        assert perfect.verdict is Verdict.PASS

    def test_the_metric_is_chosen_or_must_be_named(self, logs):
        def both(samples):
            return [
                {**s, "metrics": ["f1", "rouge"], "f1": s["exact_match"], "rouge": s["exact_match"]} for s in samples
            ]

        pair = logs(both(scored(RIGHT)), both(scored(RIGHT)))
        with pytest.raises(RecordError, match=r"name the metric.*f1, rouge"):
            compare_logs(*pair, 0.05)
        with pytest.raises(RecordError, match=r"metric 'rouge1'.*Did you mean 'rouge'"):
            compare_logs(*pair, 0.05, metric="rouge1")
        assert compare_logs(*pair, 0.05, metric="f1").verdict is Verdict.PASS


class TestVacuous:
    def test_a_file_compared_with_itself_is_invalid(self, logs, tmp_path):
        base, _ = logs(scored(RIGHT), scored(RIGHT))
        assert compare_logs(base, base, 0.05).verdict is Verdict.INVALID
        link = tmp_path / "link.jsonl"
        link.symlink_to(base)
        assert compare_logs(base, link, 0.05).verdict is Verdict.INVALID

    def test_an_approximate_method_that_changed_no_answer_never_ran(self, logs):
        pair = logs(scored(RIGHT), scored(RIGHT))
        for name in ("kv4", "h2o", "w8a8"):
            result = compare_logs(*pair, 0.05, method=method(name))
            assert result.verdict is Verdict.INVALID
            assert "identical" in result.lines[0]

    def test_an_exact_method_may_change_no_answer(self, logs):
        pair = logs(scored(RIGHT), scored(RIGHT))
        assert compare_logs(*pair, 0.05, method=method("prefix_cache")).verdict is Verdict.PASS
        assert compare_logs(*pair, 0.05).verdict is Verdict.PASS

    def test_equal_text_with_other_scores_is_not_identical(self, logs):
        pair = logs(scored(RIGHT, answer="x"), scored([0.0, 0.0, *RIGHT[2:]], answer="x"))
        assert compare_logs(*pair, 0.05, method=method("h2o")).verdict is Verdict.PASS

    def test_a_kv_method_needs_to_know_that_answers_were_generated(self, logs):
        unknown = [
            {**s, "arguments": {"gen_args_0": {"arg_0": "q"}}, "resps": [], "filtered_resps": []} for s in scored(RIGHT)
        ]
        other = [{**s, "resps": [[]]} for s in unknown]
        assert compare_logs(*logs(unknown, other), 0.05, method=method("kv4")).verdict is Verdict.INVALID


class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "holds no samples"),
            ("\n\n", "holds no samples"),
            ('{"doc_id": 0, "doc": {}', "cut off"),
            ("[1, 2]", "no lm-eval sample log"),
            ('{"results": {"acc": 0.5}}', "no lm-eval sample log"),
            ('{"doc": {}, "resps": [["a"]], "exact_match": 1.0}', "neither prompt_hash nor arguments"),
        ],
    )
    def test_unusable_files_are_errors_with_file_and_line(self, logs, tmp_path, capsys, content, message):
        base, cand = logs(scored(RIGHT), scored(RIGHT))
        cand.write_text(content, encoding="utf-8")
        for pair in ((base, cand), (cand, base)):
            assert compare_main([*map(str, pair), "--margin", "0.05"]) == 2
            assert message in capsys.readouterr().err

    def test_a_truncated_log_is_an_error_not_a_smaller_run(self, logs, capsys):
        base, cand = logs(scored(RIGHT), scored(RIGHT))
        text = cand.read_text(encoding="utf-8")
        cand.write_text(text[:-40], encoding="utf-8")
        assert compare_main([str(base), str(cand), "--margin", "0.05"]) == 2
        assert "cand.jsonl:200" in capsys.readouterr().err

    def test_missing_files_and_unknown_arguments(self, logs, capsys):
        base, _ = logs(scored(RIGHT), scored(RIGHT))
        assert compare_main([str(base), "nowhere.jsonl", "--margin", "0.05"]) == 2
        assert compare_main([str(base)]) == 2
        assert compare_main([str(base), str(base)]) == 2
        assert compare_main([str(base), str(base), "--margin", "two"]) == 2
        assert compare_main(["--help"]) == 0
        capsys.readouterr()
        assert compare_main([str(base), str(base), "--margin", "0.05", "--method", "kv5"]) == 2
        assert "Did you mean" in capsys.readouterr().err


class TestJunit:
    def test_one_testcase_per_comparison(self, logs, tmp_path):
        pair = [str(p) for p in logs(scored(RIGHT), scored([0.0] * 60 + RIGHT[60:]))]
        out = tmp_path / "sub" / "junit.xml"
        assert compare_main([*pair, "--margin", "0.05", "--method", "h2o", "--junit", str(out)]) == 1
        suite = ET.parse(out).getroot().find("testsuite")
        assert suite.attrib["tests"] == "1"
        assert suite.attrib["failures"] == "1"
        case = suite.find("testcase")
        assert case.attrib["name"] == "compare-h2o"
        message = case.find("failure").attrib["message"]
        assert message.startswith("FAIL: exact_match")
        properties = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        assert properties["attnaccept.verdict"] == "FAIL"
        assert float(properties["attnaccept.metric.exact_match"]) == pytest.approx(0.3)

    def test_pass_has_no_failure_and_everything_else_has_one(self, logs, tmp_path):
        out = tmp_path / "junit.xml"
        pair = [str(p) for p in logs(scored(RIGHT), scored([0.0, *RIGHT[1:]]))]
        assert compare_main([*pair, "--margin", "0.05", "--junit", str(out)]) == 0
        assert ET.parse(out).getroot().find(".//failure") is None
        assert compare_main([*pair, "--margin", "0.01", "--junit", str(out)]) == 2
        assert ET.parse(out).getroot().find(".//failure").attrib["message"].startswith("INCONCLUSIVE")

    def test_bad_input_is_an_error_element(self, logs, tmp_path):
        base, cand = logs(scored(RIGHT), scored(RIGHT))
        cand.write_text("\x01", encoding="utf-8")
        out = tmp_path / "junit.xml"
        assert compare_main([str(base), str(cand), "--margin", "0.05", "--junit", str(out)]) == 2
        suite = ET.parse(out).getroot().find("testsuite")
        assert suite.attrib["errors"] == "1"
        assert suite.find("testcase/error") is not None

    def test_a_report_that_cannot_be_written_is_no_pass(self, logs, tmp_path):
        pair = [str(p) for p in logs(scored(RIGHT), scored([0.0, *RIGHT[1:]]))]
        (tmp_path / "file").write_text("", encoding="utf-8")
        assert compare_main([*pair, "--margin", "0.05", "--junit", str(tmp_path / "file" / "junit.xml")]) == 2


def test_right_and_wrong_answers_become_counts(logs):
    measured, pairs = measure_logs(*logs(scored(RIGHT), scored([0.0] * 3 + RIGHT[3:-2] + [1.0, 1.0])))
    gate = measured.gates[0]
    assert isinstance(gate, PairedCounts)
    assert (gate.losses, gate.gains, gate.n, gate.base_correct) == (3, 2, 200, 180)
    assert len(measured.data_digest) == 64
    again, _ = measure_logs(*logs(scored(RIGHT), scored([0.0] * 4 + RIGHT[4:-2] + [1.0, 1.0])))
    assert again.data_digest != measured.data_digest, "the evidence is bound to both logs"
    assert "first 200" in pairs[0].notes[0]


def test_an_exact_method_whose_answers_differ_never_passes():
    base, cand = RECORDED / "samples_sums_base.jsonl", RECORDED / "samples_sums_cand.jsonl"
    assert compare_logs(base, cand, 0.15).verdict is Verdict.PASS
    result = compare_logs(base, cand, 0.15, method=method("flash_attention"))
    assert result.verdict is not Verdict.PASS
    assert "answers differ" in " ".join(result.lines)


def test_help_names_the_command_as_it_is_called(capsys) -> None:
    assert compare_main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m pytest_attnaccept compare ")
