"""``python -m pytest_attnaccept budget``: what was asked for -> a ledger, a step, a sweep, and an answer to each claim."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_attnaccept.budget import Budget, crossover_tokens, equal_reads_tokens
from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.kv_layers import MOST
from pytest_attnaccept.kv_ledger import KvLedger, ledger_of

__all__ = ["run", "sweep_lines"]

_TOLERANCE = 0.02  # policy: rounding of published numbers; ledgers of real engines agree within 0.5 %


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_attnaccept budget", description="Step time, ledger and claims."
    )
    parser.add_argument("--weights-gb", type=float, help="weight bytes one step reads, decimal GB")
    parser.add_argument(
        "--kv-gb", type=float, help="KV bytes one step reads, decimal GB (or give a layout and --context)"
    )
    parser.add_argument("--bandwidth-gbs", type=float, help="memory bandwidth, decimal GB/s")
    parser.add_argument(
        "--weight-ratio", type=float, default=1.0, help="compression of the weights, 2 = half the bytes (default: 1)"
    )
    parser.add_argument(
        "--kv-ratio",
        type=float,
        default=1.0,
        help="compression of the KV cache, 4 = a quarter of the bytes (default: 1)",
    )
    parser.add_argument("--spec", type=float, default=1.0, help="tokens per step of speculative decoding (default: 1)")
    parser.add_argument("--context", type=int, help="tokens of context, for the ledger")
    parser.add_argument("--batch", type=int, default=1, help="sequences that a step reads, for the ledger (default: 1)")
    layout = parser.add_argument_group("layout of the KV cache")
    layout.add_argument("--model", help="a config.json, a folder with one, or a known name (llama-3-8b, toy-gqa, ...)")
    layout.add_argument("--expanded", action="store_true", help="MLA: the engine caches the expanded heads")
    layout.add_argument("--layers", type=int, help="layers that keep keys and values (instead of --model)")
    layout.add_argument("--kv-heads", type=int, help="KV heads per layer")
    layout.add_argument("--head-dim", type=int, help="width of a key")
    layout.add_argument("--kv-bytes", type=float, default=2.0, help="bytes per stored value (default: 2, fp16)")
    sweep = parser.add_argument_group("sweeps")
    sweep.add_argument("--sweep-context", help="contexts such as 4096,32768,131072: one row each")
    sweep.add_argument("--sweep-kv-ratio", help="KV compressions such as 1,2,4,8: one column each")
    claims = parser.add_argument_group("claims (exit 1 when the ledger does not allow them)")
    claims.add_argument("--claim", type=float, help="a claimed speedup of everything together")
    claims.add_argument("--claim-saved-gb", type=float, help="claimed GB that a step reads less")
    return parser


def run(argv: Sequence[str]) -> int:
    """Print what was asked for; exit 1 when a claim is not what the ledger allows."""
    args = _parser().parse_args(argv)
    ledger = _ledger(args)
    _require_input(args, ledger)
    lines = _ledger_lines(ledger, args) if ledger is not None else []
    budget = _budget(args, ledger)
    claims, hold = ([], True) if budget is None else _claims(budget, args)
    if budget is not None:
        lines = [*_step_lines(budget), *lines]
    if ledger is not None and args.weights_gb is not None:
        lines += _crossovers(args, ledger)
    if args.sweep_context or args.sweep_kv_ratio:
        lines += sweep_lines(args, ledger)
    print("\n".join([*lines, *claims]))
    return 0 if hold else 1


def _require_input(args: argparse.Namespace, ledger: KvLedger | None) -> None:
    """Refuse what cannot be computed: a step needs weights, bandwidth and KV; a ledger alone needs a layout."""
    if (args.context is not None and args.context < 1) or not 0 < args.batch <= MOST:
        raise UsageError(
            f"budget: --context and --batch must be positive (and no batch holds more than {MOST} requests)"
        )
    step = args.weights_gb is not None or args.bandwidth_gbs is not None or args.kv_gb is not None
    if not step and ledger is None:
        raise UsageError("budget: give --weights-gb, --bandwidth-gbs and --kv-gb, or a layout (--model) for its ledger")
    asked_claim = args.claim is not None or args.claim_saved_gb is not None
    asked = asked_claim or args.sweep_context or args.sweep_kv_ratio
    if args.claim is not None and args.claim <= 0:
        raise UsageError(f"budget: --claim {args.claim:g} must be a positive number: a speedup such as 2.14")
    if (step or asked) and (args.weights_gb is None or args.bandwidth_gbs is None):
        raise UsageError(f"budget: a step time needs --weights-gb and --bandwidth-gbs; {_missing(args)}")
    if args.kv_gb is None and step and (ledger is None or (args.context is None and not args.sweep_context)):
        raise UsageError(
            "budget: give --kv-gb, or a layout (--model, or --layers, --kv-heads, --head-dim) and --context"
        )
    if args.sweep_context and ledger is None:
        raise UsageError("budget: --sweep-context needs a layout (--model, or --layers, --kv-heads, --head-dim)")
    if args.kv_gb is None and args.context is None and asked_claim:
        raise UsageError("budget: a claim holds at one context: give --context or --kv-gb")
    _require_one_size(args, ledger)


def _require_one_size(args: argparse.Namespace, ledger: KvLedger | None) -> None:
    """Refuse two sizes of one KV cache, and an expansion of what is not compressed."""
    if args.expanded and (ledger is None or args.model is None or ledger_of(args.model).latent is None):
        raise UsageError(
            "budget: --expanded is about a --model with a latent cache (MLA), such as deepseek-v3 or toy-mla"
        )
    if args.kv_gb is None or ledger is None or args.context is None:
        return
    resident = ledger.gb(args.context) * args.batch
    if abs(resident - args.kv_gb) > _TOLERANCE * max(resident, args.kv_gb):
        raise UsageError(
            f"budget: --kv-gb {args.kv_gb:g} is not what the layout holds at {args.context} tokens x batch {args.batch}"
            f" ({resident:.3f} GB); leave out --kv-gb or --context"
        )


def _missing(args: argparse.Namespace) -> str:
    names = [o for o, v in (("--weights-gb", args.weights_gb), ("--bandwidth-gbs", args.bandwidth_gbs)) if v is None]
    return f"missing: {' and '.join(names)}"


def _ledger(args: argparse.Namespace) -> KvLedger | None:
    sizes = (args.layers, args.kv_heads, args.head_dim)
    if args.model is not None:
        if any(s is not None for s in sizes):
            raise UsageError(
                "budget: --model and --layers, --kv-heads, --head-dim say the same thing; give one of them"
            )
        return ledger_of(args.model, value_bytes=args.kv_bytes, expanded=args.expanded)
    if all(s is None for s in sizes):
        if args.kv_bytes != _parser().get_default("kv_bytes"):
            raise UsageError("budget: --kv-bytes is about a layout (--model, or --layers, --kv-heads, --head-dim)")
        return None
    if any(s is None or s < 1 for s in sizes):
        raise UsageError("budget: --layers, --kv-heads and --head-dim belong together and are positive")
    return KvLedger(layers=args.layers, kv_heads=args.kv_heads, head_dim=args.head_dim, value_bytes=args.kv_bytes)


def _budget(args: argparse.Namespace, ledger: KvLedger | None) -> Budget | None:
    if args.weights_gb is None or args.bandwidth_gbs is None:
        return None
    kv_gb = args.kv_gb
    if kv_gb is None and ledger is not None and args.context is not None:
        kv_gb = ledger.gb(args.context) * args.batch
    return None if kv_gb is None else _with(args, kv_gb, args.kv_ratio)


def _with(args: argparse.Namespace, kv_gb: float, kv_ratio: float) -> Budget:
    return Budget(
        weights_gb=args.weights_gb, kv_gb=kv_gb, bandwidth_gbs=args.bandwidth_gbs, weight_ratio=args.weight_ratio,
        kv_ratio=kv_ratio, speculation=args.spec,
    )  # fmt: skip


def _step_lines(budget: Budget) -> list[str]:
    """Return the step as a ledger that grows by one saving per line, as bytes are saved once."""
    base = {"weights_gb": budget.weights_gb, "kv_gb": budget.kv_gb, "bandwidth_gbs": budget.bandwidth_gbs}
    rows = [("baseline", Budget(**base))]
    if budget.kv_ratio != 1 and (budget.weight_ratio != 1 or budget.speculation != 1):
        rows.append(("+ KV", Budget(**base, kv_ratio=budget.kv_ratio)))
    if budget.weight_ratio != 1 and budget.speculation != 1:
        rows.append(("+ weights", Budget(**base, kv_ratio=budget.kv_ratio, weight_ratio=budget.weight_ratio)))
    rows.append(("with everything", budget))
    lines = [f"{'':<16} {'weights GB':>10} {'KV GB':>8} {'moved GB':>9} {'ms/token':>9} {'speedup':>8}"]
    for name, row in rows:
        lines.append(
            f"{name:<16} {row.weights_gb / row.weight_ratio:>10.3f} {row.kv_gb / row.kv_ratio:>8.3f}"
            f" {row.moved_gb:>9.3f} {row.step_ms:>9.3f} {row.speedup:>7.2f}x"
        )
    lines.append(
        f"KV share of the baseline's bytes: {budget.kv_share:.1%}; no split of bytes allows more than {budget.ceiling:.2f}x"
    )
    if budget.naive > budget.speedup * (1 + _TOLERANCE):
        lines.append(
            f"the product of the ratios, {budget.naive:.2f}x, counts the same bytes more than once"
            if _several(budget)
            else f"the ratio of {budget.naive:.2f}x holds for a part of the bytes only"
        )
    return lines


def _ledger_lines(ledger: KvLedger, args: argparse.Namespace) -> list[str]:
    line = f"KV ledger: {ledger.kib_per_token:g} KiB per token"
    if ledger.latent is not None:
        line += f" (latent of {ledger.latent} values in {ledger.layers} layers)"
    if ledger.windows:
        line += f" ({len(ledger.windows)} of {ledger.layers} layers keep a window of {max(ledger.windows)} tokens)"
    if args.context is not None:
        line += f", {_size(ledger.gib(args.context) * args.batch)} at {args.context} tokens x batch {args.batch}"
        if args.weights_gb is not None:
            line += f" ({ledger.gb(args.context) * args.batch / args.weights_gb:.2f} x the weights, both in GB)"
    return [line]


def _size(gib: float) -> str:
    """Return GiB, or KiB where GiB would be a row of zeros."""
    return f"{gib:g} GiB" if gib >= 0.01 else f"{gib * 1024**2:g} KiB"


def _crossovers(args: argparse.Namespace, ledger: KvLedger) -> list[str]:
    if ledger.windows:
        return ["KV of windowed layers stops growing: no single crossover; sweep the context instead"]
    per_token = ledger.kib_per_token
    tokens = equal_reads_tokens(args.weights_gb, per_token, args.weight_ratio, args.kv_ratio)
    lines = [f"a step reads more KV than weights from {tokens:,.0f} resident tokens (batch x context)"]
    if args.weight_ratio > 1 and args.kv_ratio > 1:
        tokens = crossover_tokens(args.weights_gb, per_token, args.weight_ratio, args.kv_ratio)
        lines.append(
            f"KV compression saves more time than weight compression from {tokens:,.0f} resident tokens (batch x context)"
        )
    return lines


def sweep_lines(args: argparse.Namespace, ledger: KvLedger | None) -> list[str]:
    """Return ms per token and speedup for every context (rows) and KV compression (columns)."""
    contexts = _numbers(args.sweep_context, "--sweep-context", int) if args.sweep_context else [args.context]
    ratios = _numbers(args.sweep_kv_ratio, "--sweep-kv-ratio", float) if args.sweep_kv_ratio else [args.kv_ratio]
    head = "".join(f"{f'KV / {ratio:g}':>18}" for ratio in ratios)
    lines = [f"{'context':>10} {'KV share':>9}{head}   (ms per token, speedup; * reads more KV than weights)"]
    for context in contexts:
        kv_gb = args.kv_gb if ledger is None or context is None else ledger.gb(int(context)) * args.batch
        row = [_with(args, kv_gb, ratio) for ratio in ratios]
        cells = "".join(
            f"{f'{b.step_ms:.3f} {b.speedup:.2f}x' + ('*' if b.kv_gb / b.kv_ratio > b.weights_gb / b.weight_ratio else ' '):>18}"
            for b in row
        )
        lines.append(f"{context if context is not None else '-':>10} {row[0].kv_share:>9.1%}{cells}")
    return lines


def _numbers(text: str, option: str, kind: type[int] | type[float]) -> list[float]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"budget: {option}={text!r} must be numbers with commas between them") from error
    if not numbers or any(not 0 < n < float("inf") for n in numbers):
        raise UsageError(f"budget: {option}={text!r} must be positive numbers")
    return [n for n in numbers]


def _claims(budget: Budget, args: argparse.Namespace) -> tuple[list[str], bool]:
    """Return one line per claim and whether all of them hold; NaN is no claim that holds."""
    lines, hold = [], True
    if args.claim is not None:
        allowed = args.claim <= budget.speedup * (1 + _TOLERANCE)
        hold = allowed
        lines.append(
            f"claim {args.claim:g}x is within what the ledger allows ({budget.speedup:.2f}x)"
            if allowed
            else f"claim {args.claim:g}x is above what the ledger allows ({budget.speedup:.2f}x): {_why(budget, args.claim)}"
        )
    saved = args.claim_saved_gb
    if saved is not None:
        allowed = abs(saved - budget.saved_gb) <= _TOLERANCE * budget.saved_gb
        hold = hold and allowed
        lines.append(
            f"claim of {saved:g} GB saved per step is {'' if allowed else 'not '}what the ledger says"
            f" ({budget.saved_gb:.3f} GB = {budget.weights_gb - budget.weights_gb / budget.weight_ratio:.3f} of weights"
            f" + {budget.kv_gb - budget.kv_gb / budget.kv_ratio:.3f} of KV)"
        )
    return lines, hold


def _several(budget: Budget) -> bool:
    """Whether more than one gain was given: one alone cannot count the same bytes twice."""
    return sum(ratio != 1 for ratio in (budget.weight_ratio, budget.kv_ratio, budget.speculation)) > 1


def _why(budget: Budget, claimed: float) -> str:
    """Say what a claim that is too large does: multiply ratios, or promise more than any ratio that was given."""
    if claimed <= budget.naive * (1 + _TOLERANCE):
        return (
            "it counts bytes twice"
            if _several(budget)
            else "the ratio that was given holds for a part of the bytes only"
        )
    if claimed != claimed:
        return "it is not a number"
    return (
        f"not even the product of the ratios ({budget.naive:.2f}x) reaches it; give what is claimed with --weight-ratio,"
        " --kv-ratio and --spec"
    )
