"""The benchmarks run, verify, report and refuse; in toy sizes, in triton's interpreter."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from liger.registry import registry
from liger.testing.kernels import in_part

pytest.importorskip("triton")
OPS = [op for op in registry().ops if op == "rms_norm" or in_part(op)]
ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--smoke", "silu_mul", "--modes", "forward")
FAST = (*SMALL, "--providers", "ours,eager")
BROKEN = """
import sys
from liger.bench.main import main
from liger_kernels_act import _gated_triton as act
right = act.silu_mul_triton
act.silu_mul_triton = lambda *pair, **options: right(*pair, **options) * 1.05
sys.exit(main(sys.argv[1:]))
"""
NCU = """#!{python}
import subprocess, sys
words = sys.argv[1:]
log, child = words[words.index("--log-file") + 1], words[words.index("--log-file") + 2:]
done = subprocess.run(child)
metrics = words[words.index("--metrics") + 1].split(",")
table = [["Kernel Name", *metrics], ["", "us", "%", "%", "register/thread"], ["_forward", "12.5", "91", "40", "32"]]
with open(log, "w") as file:
    print("==PROF== Connected", *(",".join(f'"{{c}}"' for c in line) for line in table), sep="\\n", file=file)
sys.exit(done.returncode)
"""


def python(*arguments: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "LIGER_SHA": "abc", **more}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def bench(*arguments: str | Path, **more) -> subprocess.CompletedProcess[str]:
    return python("-m", "liger.bench", *arguments, **more)


@pytest.fixture
def main(monkeypatch, tmp_path):
    """The command in this process, in a folder of its own."""
    from liger.bench.main import main

    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET=1 has to be there before triton is first imported, as nox sets it")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.chdir(tmp_path)
    return lambda *words: main([str(word) for word in words])


def row(provider="ours", mode="forward", status="timed", p50=1.0, peak=100.0, case="R=8 H=16", **more):
    r, h = re.findall(r"\d+", case)
    mine = provider.startswith("ours")
    about = {"op": "rms_norm", "kernel": "rms_norm/triton" if mine else None, "provider": provider, "case": case}
    about |= {"sizes": {"R": int(r), "H": int(h)}, "variable": "H", "mode": mode, "status": status}
    times = {"p50": p50, "repetitions": [p50, p50 * 1.001, p50, p50 * 0.999, p50], "limit": "copy", "share": 90 / p50}
    return {**about, **times, "peak_mib": peak, "device": "NVIDIA X", "sha": "abc", "versions": {"torch": "2"}, **more}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Without LIGER_TEST_PART all ops, otherwise those of the part."""
    out = tmp_path_factory.mktemp("whole")
    words = OPS if len(OPS) < len(registry().ops) else ()
    return bench("--smoke", *words, "--out", out), out


def test_every_triton_kernel_has_all_its_rows(whole) -> None:
    done, out = whole
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [k for op in OPS for k in registry().kernels(op) if k.needs.interpreter]
    assert kernels
    for kernel in kernels:
        rows = json.loads((out / f"{kernel.op}.json").read_text())["rows"]
        assert all(r["status"] == "timed" and r["sha"] == "abc" and r["versions"]["torch"] for r in rows)
        mine = [r for r in rows if r["kernel"] == kernel.id]
        modes = {r["mode"] for r in mine}  # one alone where the forward makes the gradient, or there is none
        assert modes in ({"full"}, {"forward"}, {"forward", "backward", "full"}) and len({r["case"] for r in mine}) == 2
        for r in mine:
            assert r["p20"] <= r["p50"] <= r["p80"] and r["bytes"] > 0 and r["gbps"] > 0 and r["share"] > 0
            assert ("host_above_us" in r) == (r["mode"] == "full")
            beside = {o["provider"] for o in rows if (o["case"], o["mode"]) == (r["case"], r["mode"])}
            assert {"ours", "eager", "torch.compile", r["limit"]} <= beside
            assert ("F.rms_norm" in beside) == (kernel.op == "rms_norm")
        parts = {r["mode"]: r["bytes"] for r in mine if r["case"] == mine[0]["case"]}
        assert len(parts) == 1 or parts["full"] == parts["forward"] + parts["backward"]


def test_table_and_plots_are_written(whole) -> None:
    pytest.importorskip("matplotlib")
    done, out = whole
    text = (out / "table.md").read_text()
    for op in OPS:
        assert f"| {op} |" in text and re.search(rf"^- {op}: .+\.$", text, re.M) and f"\n{op} " in done.stdout
        assert (out / f"{op}.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.startswith("op ") and "ours ms" in done.stdout


def test_a_wrong_kernel_is_not_timed(tmp_path) -> None:
    done = python("-c", BROKEN, *FAST, "--out", tmp_path)
    assert done.returncode == 1, done.stderr
    rows = json.loads((tmp_path / "silu_mul.json").read_text())["rows"]
    assert {r["status"] for r in rows if r["provider"] == "ours"} == {"wrong"}
    assert {r["status"] for r in rows if r["provider"] == "eager"} == {"timed"}
    assert "FAILED silu_mul/triton: not timed at all" in done.stdout


def test_a_missing_row_fails(main, monkeypatch, capsys, tmp_path) -> None:
    from liger.bench.run import Run

    add = Run.add
    monkeypatch.setattr(Run, "add", lambda run, at, who, *rest, **v: who == "eager" or add(run, at, who, *rest, **v))
    assert main(*FAST, "--out", tmp_path) == 1
    out = capsys.readouterr().out
    assert len(re.findall(r"FAILED silu_mul R=3 H=\d+ forward: no row of eager", out)) == 2


def test_what_does_not_fit_is_left_out_and_says_why(main, monkeypatch, tmp_path) -> None:
    from liger.bench import cap

    monkeypatch.setattr(cap, "available", lambda device: 3000)
    assert main(*FAST, "--out", tmp_path) == 0
    rows = json.loads((tmp_path / "silu_mul.json").read_text())["rows"]
    last = rows[-1]
    assert {r["case"] for r in rows if r["status"] == "timed"} == {"R=3 H=96"}
    assert (last["status"], last["provider"], last["case"]) == ("capped", "all", "R=3 H=511")
    assert "needs about 5.71e-06 GiB" in last["problem"] and "available are 2.24e-06 GiB" in last["problem"]


def test_a_point_that_runs_out_of_memory_is_not_passed_over(main, monkeypatch, capsys, tmp_path) -> None:
    import torch

    from liger.bench import run

    measure = run.measure

    def second_fails(run, at):
        if at.sizes["H"] > 96:
            raise torch.OutOfMemoryError("tried to allocate 9 GiB")
        measure(run, at)

    monkeypatch.setattr(run, "measure", second_fails)
    assert main(*FAST, "--out", tmp_path) == 1
    assert "FAILED silu_mul R=3 H=511: ours: out of memory: tried to allocate 9 GiB" in capsys.readouterr().out


@pytest.mark.parametrize("error", [None, ImportError("no module x")])
def test_a_peer_that_is_wrong_or_broken_has_a_row_that_says_so(error, main, monkeypatch, tmp_path) -> None:
    from liger.bench import peer

    def compute(x, weight):
        if error:
            raise error
        return x * weight

    monkeypatch.setattr("liger_kernels_norm._peers.torch_rms_norm", peer("torch", cuda=False)(compute))
    words = ("--smoke", "rms_norm", "--modes", "forward", "--providers", "ours,F.rms_norm")
    assert main(*words, "--out", tmp_path) == 0
    rows = json.loads((tmp_path / "rms_norm.json").read_text())["rows"]
    said = {(r["status"], r["problem"].partition(":")[0]) for r in rows if r["provider"] == "F.rms_norm"}
    assert said == {("failed", "ImportError") if error else ("wrong", "ContractViolation")}
    assert f"F.rms_norm: {'failed' if error else 'wrong'}: " in (tmp_path / "table.md").read_text()


def test_peers_are_declared_with_what_they_need() -> None:
    from liger.bench import Peer
    from liger.declare import load

    peers = {(op.name, name): load(target) for op in registry().ops.values() for name, target in op.peers.items()}
    assert all(isinstance(found, Peer) and found.fn.__doc__ for found in peers.values())
    theirs = {op for op, name in peers if name == "liger-kernel"}
    assert theirs >= {"rms_norm", "layer_norm", "fused_add_rms_norm", "silu_mul", "softmax", "rope", "cross_entropy"}
    assert not theirs & {"cohere_norm", "l2norm", "gated_rms_norm", "qk_norm_rope"}  # it has none of these
    assert peers["cross_entropy", "liger-kernel"].modes == ("full",) and peers["rms_norm", "quack"].module == "quack"


def test_our_own_liger_kernel_is_no_peer() -> None:
    from liger.bench.providers import _installed

    assert metadata.version("liger-compat") and find_spec("liger_kernel")
    assert not _installed("liger_kernel")
    assert _installed("torch") and not _installed("no_such_library")


def test_the_next_peak_is_estimated_from_the_last(monkeypatch) -> None:
    from liger.bench import cap
    from liger.bench.options import Options
    from liger.bench.plan import plan

    _, _, first, second, *_ = plan(Options(ops=("linear_cross_entropy",)))["linear_cross_entropy"][0]
    assert 1.6 < cap.growth(second, first) < 2  # by the bytes moved, with the logits: the inputs grow by 3 %
    monkeypatch.setattr(cap, "available", lambda device: 100 * cap.GIB)
    assert cap.reason(first, None, 0, "cuda") is None
    assert cap.reason(second, first, 47 * cap.GIB, "cuda") is None
    said = cap.reason(second, first, 48 * cap.GIB, "cuda")
    assert said and "needs about 80.2 GiB (48 GiB at N=4096 H=4096 V=128256, times 1.67), available are 80 GiB" in said


def test_what_excuses_a_row_that_is_not_there() -> None:
    from liger.bench.providers import Provider
    from liger.bench.rows import failures

    kernel = next(k for k in registry().kernels("rms_norm") if k.name == "triton")
    everyone = {
        "ours": Provider(name="ours", fn=print, kernel=kernel),
        "torch.compile": Provider(name="torch.compile", fn=print, compiled=True),
        "peer": Provider(name="peer", fn=print),
    }
    wanted = {("rms_norm", "R=8 H=16", "forward", name): p for name, p in everyone.items()}

    def failed(**statuses):
        mode = {"timed": "forward"}
        names = {name.replace("_", "."): status for name, status in statuses.items()}
        return failures([row(n, mode=mode.get(s), status=s, problem="so") for n, s in names.items()], wanted)

    assert failed(ours="timed", torch_compile="timed", peer="timed") == []
    assert failed(ours="timed", torch_compile="no time", peer="wrong") == []
    assert failed(ours="timed", torch_compile="timed") == ["rms_norm R=8 H=16 forward: no row of peer"]
    assert failed(ours="timed", torch_compile="timed", peer="no time") == ["rms_norm R=8 H=16: peer: so"]
    assert "rms_norm R=8 H=16: ours: so" in failed(ours="wrong", torch_compile="timed", peer="timed")
    assert "rms_norm/triton: not timed at all" in failed(all="capped")
    assert "rms_norm R=8 H=16: no provider was verified" in failed(ours="wrong", torch_compile="wrong", peer="failed")
    assert failures([], {})[0].startswith("nothing to time: none of the chosen providers is installed")


def test_the_assessment_flags_what_is_much_worse() -> None:
    from liger.bench.report import assessment, markdown

    (fine,) = assessment([row(), row("eager", p50=2.0), row("peer", p50=0.99)])
    assert fine == "rms_norm: nothing is much worse."
    (bad,) = assessment([row(p50=2.0, peak=150.0), row("eager", p50=3.0), row("peer", p50=1.0)])
    assert "slower than the best other in 1 of 1 rows, at worst 2.00x peer at R=8 H=16 forward" in bad
    assert "under 85 % of the limit in 1 of 1 rows, at worst 45 %" in bad and "at worst 50 MiB more" in bad
    odd = row("odd", status="wrong", problem="off by 3")
    text = markdown([row(), row("eager", p50=2.0), row("peer", p50=0.99), odd])
    assert "| 2.00 | 0.99 peer | 1.01 (1.01-1.01) = |" in text and "| peak MiB | saving |" in text
    for ours, eager, cells in ((100.0, 250.0, "100 | 2.50"), (None, 250.0, "- | -"), (0.0, 9.0, "0 | -")):
        assert f"| {cells} |" in markdown([row(peak=ours), row("eager", peak=eager)])
    assert "| 100 | - |" in markdown([row()])
    assert "- rms_norm R=8 H=16 forward: odd: wrong: off by 3" in text


def test_an_interval_decides_what_is_within_2_percent() -> None:
    from liger.bench.stats import ratio

    sure, unsure = ratio([1.05] * 5, [1.0] * 5), ratio([1.05, 1.0, 1.1, 1.05, 0.98], [1.0] * 5)
    assert not sure.within(0.02) and sure.low == pytest.approx(1.05) and unsure.within(0.02)
    assert unsure.low < 1.02 < unsure.high


@pytest.mark.parametrize(
    "new, status, says",
    [
        ([row(p50=1.04, peak=104.0), row(mode="full")], 0, "0 of 2 rows"),
        ([row(p50=1.06), row(mode="full")], 1, "+6.0"),
        ([row(peak=106.0), row(mode="full")], 1, "memory"),
        ([row()], 1, "missing"),
        ([row(), row(mode="full", status="wrong")], 1, "missing"),
        ([row(p50=0.5), row(mode="full"), row("eager", p50=9.0)], 0, "-50.0"),
        ([row(p50=0.5, peak=None), row(mode="full")], 1, "memory is missing"),
    ],
)
def test_compare_finds_what_became_worse(new, status, says, tmp_path, capsys) -> None:
    from liger.bench.main import main
    from liger.bench.rows import write

    write([row(), row(mode="full"), row("eager")], tmp_path / "old")
    write(new, tmp_path / "new")
    for name in ("", "rms_norm.json"):
        assert main(["compare", str(tmp_path / "old" / name), str(tmp_path / "new" / name)]) == status
        assert says in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--percent", "7"]) == ("missing" in says)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    "rows, message",
    [
        *(
            ([row() | {"p50": p50}], f"p50 is {p50}, expected a positive")
            for p50 in (math.nan, math.inf, 0, -5.0, None, "1")
        ),
        ([row(peak=math.nan)], "peak_mib is nan"),
        ([{k: v for k, v in row().items() if k != "p50"}], "a row lacks p50"),
        ([{k: v for k, v in row().items() if k != "versions"}], "a row lacks versions"),
        ([row(p50=10.0), row()], "has two rows of rms_norm R=8 H=16 forward ours"),
    ],
)
def test_compare_refuses_damaged_rows(old, rows, message, tmp_path) -> None:
    from liger.bench.main import main
    from liger.bench.rows import write

    write([row()], tmp_path / "fine")
    write(rows, tmp_path / "damaged")
    pair = ("damaged", "fine") if old else ("fine", "damaged")
    with pytest.raises(ValueError, match=f"damaged.*{message}"):
        main(["compare", *(str(tmp_path / name) for name in pair)])


@pytest.mark.parametrize("text", ['<<<<<<< HEAD\n{"format": 1', '{"format": 0, "rows": []}', '{"format": 1}', "[1]"])
def test_compare_passes_over_no_file_of_an_op(text, tmp_path) -> None:
    from liger.bench.main import main
    from liger.bench.rows import write

    write([row()], tmp_path)
    (tmp_path / "base.json").write_text(text)
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 0
    (tmp_path / "rope.json").write_text(text)
    with pytest.raises(ValueError, match=r"rope.json is no result of `liger bench` in format 1"):
        main(["compare", str(tmp_path), str(tmp_path)])


@pytest.mark.parametrize("percent", ["nan", "inf", "-1"])
def test_compare_needs_a_percentage(percent) -> None:
    from liger.bench.main import main

    with pytest.raises(ValueError, match="--percent must be a number from 0, got"):
        main(["compare", "old", "new", "--percent", percent])


def test_compare_names_other_versions(tmp_path, capsys) -> None:
    from liger.bench.main import main
    from liger.bench.rows import write

    write([row()], tmp_path / "old")
    write([row(versions={"torch": "2", "triton": "3.7"})], tmp_path / "new")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "warning: triton None in OLD, 3.7 in NEW" in out and "torch" not in out


def test_compare_refuses_what_is_no_pair_of_results(tmp_path) -> None:
    from liger.bench.main import main
    from liger.bench.rows import write

    write([row()], tmp_path / "old")
    write([row(device="other")], tmp_path / "new")
    for pair, message in (
        (("old", "new"), "different devices .* NVIDIA X, other"),
        (("old", "nowhere"), "nowhere does not exist"),
        (("empty", "old"), "no timed row of ours"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=message):
            main(["compare", *(str(tmp_path / name) for name in pair)])


def test_sizes_come_from_a_named_model_or_a_config(tmp_path) -> None:
    from liger.bench.options import Options
    from liger.bench.plan import plan

    def sizes(op, **options):
        return [dict(p.sizes) for series in plan(Options(ops=(op,), **options))[op] for p in series]

    assert sizes("silu_mul", model="llama-3-8b") == [{"R": 16384, "H": 14336}]
    assert sizes("rms_norm", model="gemma-2-2b", tokens=100) == [{"R": 100, "H": 2304}]
    kinds = 3  # plain, with a frozen head, and with a soft cap
    assert sizes("linear_cross_entropy", model="qwen3-8b") == kinds * [{"N": 16384, "H": 4096, "V": 151936}]
    assert {(s["NQ"], s["NK"], s["D"]) for s in sizes("rope", model="smollm2-135m")} == {(9, 3, 64)}
    config = {"text_config": {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 200}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {(s["NQ"], s["NK"], s["D"]) for s in sizes("rope", model=str(tmp_path))} == {(6, 6, 16)}
    file = tmp_path / "config.json"
    with pytest.raises(ValueError, match="cross_entropy takes V from 'vocab_size', which .* does not have"):
        sizes("cross_entropy", model=str(file))
    file.write_text('{"text_config": null, "hidden_size": 64}')
    assert sizes("rms_norm", model=str(file), tokens=1) == [{"R": 1, "H": 64}]
    file.write_text('{"hidden_size": -4, "vocab_size": 0}')
    for op, said in (("rms_norm", "H from 'hidden_size', which is -4"), ("cross_entropy", "V from 'vocab_size', .* 0")):
        with pytest.raises(ValueError, match=f"{op} takes {said} in .*config.json, expected >= 1"):
            sizes(op, model=str(file))
    file.write_text('{"text_config": [1]}')
    with pytest.raises(ValueError, match="holds list as text_config"):
        sizes("rms_norm", model=str(file))


def test_results_of_two_models_lie_apart(monkeypatch, tmp_path) -> None:
    import torch

    from liger.bench.options import Options
    from liger.bench.run import folder

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    (tmp_path / "a-1.5").mkdir()
    (tmp_path / "b").mkdir()
    models = ("llama-3.2-1b", tmp_path / "a-1.5", tmp_path / "b/config.json", tmp_path / "c-2.5.json")
    found = [folder(Options(model=str(model))) for model in models]
    assert found == [Path("benchmarks/results/h200", name) for name in ("llama-3.2-1b", "a-1.5", "b", "c-2.5")]


@pytest.mark.parametrize(
    "words, message",
    [
        (["nope"], "there is no op 'nope'; known: .*rms_norm"),
        (["--kernels", "rms_norm/cuda"], "there is no kernel 'rms_norm/cuda'; known: .*rms_norm/triton"),
        (["--providers", "apex"], "there is no provider 'apex'; known: .*cut-cross-entropy, eager"),
        (["--modes", "both"], "there is no mode 'both'; known: backward, forward, full"),
        (["--model", "llama-9"], "'llama-9' is no config.json and no known model; known: .*llama-3-8b"),
        (["rope", "--kernels", "rms_norm/triton"], "nothing to time"),
        (["--smoke", "--model", "llama-3-8b"], "leave out --model"),
        (["--seconds", "0"], "must be positive"),
        (["--seconds", "nan"], "must be positive"),
        (["--tokens", "100"], "--tokens would have no effect without --model"),
        (["--base", "HEAD", "--providers", "ours"], "--providers would have no effect with --base"),
        (["--ncu", "--out", "x"], "--out would have no effect with --ncu"),
        (["rope", "rms_norm", "--kernels", "rms_norm/triton"], "no Triton kernel of rope is among those chosen"),
        (["rope", "--kernels", "rms_norm/triton,rope/triton"], "rms_norm/triton: no Triton kernel, or of an op that"),
        (["--kernels", "rope/reference,rope/triton"], "rope/reference: no Triton kernel"),
    ],
)
def test_a_wrong_option_lists_what_there_is(words, message) -> None:
    from liger.bench.options import parse

    with pytest.raises(ValueError, match=message):
        parse(words)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--providers", ""], "--providers: expected names with commas between them, got ''"),
        (["--kernels", " , "], "--kernels: expected names"),
        (["--base", "HEAD", "--ncu"], "--ncu: not allowed with argument --base"),
    ],
)
def test_a_malformed_command_line_is_refused(words, message, capsys) -> None:
    from liger.bench.options import parse

    with pytest.raises(SystemExit):
        parse(words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, named",
    [
        (["rms_norm", "--providers", "ours,liger-kernel"], "provider liger-kernel"),
        (["silu_mul", "--providers", "ours,F.rms_norm"], "provider F.rms_norm"),
        (["linear_cross_entropy", "silu_mul", "--modes", "forward"], "op linear_cross_entropy"),
        (["linear_cross_entropy", "--modes", "full,forward"], "mode forward"),
    ],
)
def test_what_was_named_and_will_have_no_row_is_an_error(words, named, main, tmp_path) -> None:
    with pytest.raises(ValueError, match=f"no row of {named}: what is named has to be installed"):
        main("--smoke", *words, "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_passes_everything_on() -> None:
    from liger.cli import build

    shown = CliRunner().invoke(build(), ["bench", "--help"])
    assert shown.exit_code == 0 and "--providers" in shown.output
    refused = CliRunner().invoke(build(), ["bench", "--smoke", "nope"])
    assert isinstance(refused.exception, ValueError) and "no op 'nope'" in str(refused.exception)


def test_reading_options_is_lean() -> None:
    heavy = "[m for m in ('torch', 'triton', 'numpy', 'matplotlib', 'typer') if m in sys.modules]"
    code = f"import sys; from liger.bench.options import parse; parse(['rms_norm', '--smoke']); print({heavy})"
    assert python("-c", code).stdout.strip() == "[]"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with one commit: our packages, tools and a test."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("repository")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist", "build")
    for name in ("packages", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    (root / "tests").mkdir()
    (root / "tests" / "test_x.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        git(root, *words)
    return root


def git(root, *words):
    name = ("-c", "user.name=x", "-c", "user.email=x@y")
    return subprocess.run(["git", "-C", root, *name, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def edited(repository):
    """The repository, to be changed; put right afterwards, and no worktree may be left."""
    yield repository
    git(repository, "checkout", "-q", ".")
    git(repository, "clean", "-fdq")
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_two_revisions_are_timed_in_turn(edited, main, monkeypatch, capsys, tmp_path) -> None:
    (edited / "packages/kernels-act/src/liger_kernels_act/_gated_triton.py").open("a").write("# slower\n")
    monkeypatch.chdir(edited)
    assert main("--base", "HEAD", *SMALL, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / "base.json").read_text())["rows"]
    assert len(rows) == 2 and all(low <= value <= high for value, low, high in (r["ratio"] for r in rows))
    assert "new / base (95 %)" in out and "silu_mul/triton" in out


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("tests/test_x.py", "1", "2", "differ from .*tests/test_x.py"),
        ("packages/kernels-act/tests/test_new.py", "", "x = 1\n", "kernels-act/tests/test_new.py"),
        ("packages/core/src/liger/testing/compare.py", "FACTOR = 2.0", "FACTOR = 4.0", "compare.py"),
        (
            "packages/kernels-act/src/liger_kernels_act/silu_mul.py",
            "multiplier)) * up",
            "multiplier)) * up * 1",
            "mul_reference",
        ),
        ("packages/kernels-norm/src/liger_kernels_norm/rms_norm.py", "1 + 0.2", "1 + 0.3", "rms_norm_inputs"),
        ("packages/core/src/liger/bench/stats.py", "import math", "import math as math", "the timer.*bench/stats.py"),
        (
            "packages/kernels-norm/src/liger_kernels_norm/declare/row_norms.py",
            '"reduction": "H"',
            '"reduction": None',
            "op rms_norm is declared otherwise, .*: reduction is 'H' there and None here",
        ),
        ("packages/core/src/liger/numerics.py", "else x.float()", "else x.double()", "liger.numerics:acc"),
    ],
)
def test_a_base_that_is_judged_otherwise_is_refused(file, old, new, message, edited, main, monkeypatch) -> None:
    path = edited / file
    text = path.read_text() if path.exists() else ""
    assert old in text
    path.write_text(text.replace(old, new) if old else new)
    monkeypatch.chdir(edited)
    with pytest.raises(ValueError, match=message):
        main(*SMALL, "rms_norm", "--base", "HEAD")


def test_a_base_without_a_worker_is_refused(edited, main, monkeypatch) -> None:
    empty = git(edited, "commit-tree", git(edited, "hash-object", "-wt", "tree", "/dev/null"), "-m", "x")
    monkeypatch.chdir(edited)
    with pytest.raises(ValueError, match="has no packages/core/src/liger/bench/worker.py"):
        main(*SMALL, "--base", empty)
    with pytest.raises(ValueError, match="git rev-parse .*nowhere"):
        main(*SMALL, "--base", "nowhere")


def test_the_profiler_is_called_and_its_output_kept_out_of_git(main, monkeypatch, capsys, tmp_path) -> None:
    fake = tmp_path / "ncu"
    fake.write_text(NCU.format(python=sys.executable))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main("--ncu", *SMALL) == 0
    out = capsys.readouterr().out
    assert re.search(r"silu_mul/triton +forward +_forward +12.5 us +91 +40 +32 register/thread", out)
    assert (tmp_path / "build/ncu/silu_mul-triton-forward.csv").is_file()
    assert "build/" in (ROOT / ".gitignore").read_text().split()


def test_without_the_profiler_the_error_says_so(main, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="there is no `ncu` on the PATH"):
        main(*SMALL, "--ncu")
