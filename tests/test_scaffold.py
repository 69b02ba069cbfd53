"""`liger new`: what it makes is installed as a real wheel and passes its own tests at once."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import liger
from liger.errors import LigerError
from liger.scaffold import Tier, add_to_plugin, app, new_kernel, new_model
from liger.testing.kernels import part
from liger.upstream import find

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """As much of this repository as the generator looks at: core, and one family to add to."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    skip = shutil.ignore_patterns("tests", "__pycache__")
    for name in ("core", "kernels-norm"):
        shutil.copytree(ROOT / "packages" / name, root / "packages" / name, ignore=skip)
    return root


@pytest.fixture(scope="module")
def made(checkout):
    """One op of each tier, two in a new family and one in a family that exists, and a model."""
    return {
        new_kernel("scratch", "soft_gate", Tier.elementwise, checkout),
        new_kernel("scratch", "gated_norm", Tier.fused, checkout),
        new_kernel("norm", "unit_length", Tier.reduction, checkout),
        new_model("helium", "helium", checkout),
    }


def install(folders, site):
    uv = shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    for folder in folders:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(site.parent / "wheels")]
        subprocess.run([*build, str(folder)], check=True, capture_output=True)
    wheels = map(str, (site.parent / "wheels").glob("*.whl"))
    command = [*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), *wheels]
    subprocess.run(command, check=True, capture_output=True)


def in_turn(items):
    """All of them, or some in a part of the checks, others in the next part; one where there are as many parts."""
    index, parts = part()
    turns = min(parts, len(items))
    return [item for at, item in enumerate(items) if at % turns == index % turns]


@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_all_parts_together_try_everything(parts, monkeypatch):
    tried = []
    for index in range(parts):
        monkeypatch.setenv("LIGER_TEST_PART", f"{index}/{parts}")
        tried += in_turn("abc")
    assert set(tried) == set("abc") and len(tried) == max(parts, 3)


@pytest.mark.slow
def test_what_is_made_passes_its_own_tests(made, tmp_path):
    site = tmp_path / "site"
    install(made, site)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    env.pop("LIGER_TEST_PART", None)  # all checks of those whose turn it is
    tried = in_turn(sorted(made))
    processes = ("-n", str(min(2, os.cpu_count() or 1))) if importlib.util.find_spec("xdist") else ()
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--import-mode=importlib", *processes]
    command += [str(f / "tests") for f in tried]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    skipped = re.findall(r"^SKIPPED .*$", done.stdout, re.MULTILINE)
    assert passed > 25 * len(tried) and all("CUDA device" in line for line in skipped), done.stdout[-2000:]


@pytest.mark.slow
def test_what_is_made_compiles_for_gpus(made, tmp_path):
    site = tmp_path / "site"
    install(made, site)
    env = {k: v for k, v in os.environ.items() if k not in ("LIGER_TEST_PART", "TRITON_INTERPRET")}
    env["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    kernels = [f"{op}/triton" for op in in_turn(["soft_gate", "gated_norm", "unit_length"])]
    gate = [sys.executable, str(ROOT / "tools" / "compile_gate.py"), "--targets", "sm90", "gfx942", "--kernels"]
    done = subprocess.run([*gate, *kernels], capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stdout.count(" 0 bad\n") == 2 * len(kernels), done.stdout + done.stderr


def test_what_is_made_is_formatted_and_has_no_lint(made, checkout):
    pytest.importorskip("ruff", reason="only where the linter is installed, as in the session third_party")
    folders = [str(folder) for folder in made]
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, *folders]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_has_what_the_house_rules_ask(made, checkout):
    version = liger.__version__
    assert {f.relative_to(checkout).as_posix() for f in made} == {
        "packages/kernels-scratch",
        "packages/kernels-norm",
        "packages/models/helium",
    }
    for folder in made:
        text = (folder / "pyproject.toml").read_text()
        assert f'version = "{version}"' in text and f'"liger-core=={version}"' in text
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        assert (
            (folder / "README.md").read_text().startswith(f"# liger-{folder.name.replace('helium', 'models-helium')}\n")
        )


def test_the_plugin_keeps_what_it_had(made, checkout):
    before = (ROOT / "packages/kernels-norm/src/liger_kernels_norm/plugin.py").read_text()
    after = (checkout / "packages/kernels-norm/src/liger_kernels_norm/plugin.py").read_text()
    lines = after.splitlines()
    gone = [line for line in before.splitlines() if line not in lines and not line.startswith("from liger import ")]
    assert gone == [re.search(r"    return \[.*\]", before)[0]]
    assert "UNIT_LENGTH, UNIT_LENGTH_TRITON]" in after


def test_a_change_note_belongs_to_a_model(made, checkout):
    (note,) = (checkout / "changes").iterdir()
    assert note.name == "models-helium.md" and note.read_text() == "models-helium: `helium` is declared and checked.\n"


def test_dry_run_shows_every_file_and_writes_none(tmp_path):
    for words, last in ((["model", "helium"], "7 files"), (["kernel", "mine", "soft_gate"], "8 files")):
        done = CliRunner().invoke(app, [*words, "--dry-run", "--root", str(tmp_path)])
        assert done.exit_code == 0 and done.stdout.endswith(f"{last}, none written\n"), done.stdout
        assert f"--- {tmp_path}" in done.stdout and not list(tmp_path.iterdir())
    assert "def soft_gate(" in done.stdout


NO_PLUGIN = ("helium", "starcoder2", "stablelm")  # docs/add-a-model.md names them


@pytest.mark.slow
@pytest.mark.parametrize("model_type", in_turn(NO_PLUGIN))
def test_what_is_made_is_valid_as_it_is(model_type, tmp_path):
    folder = new_model(model_type, model_type, tmp_path)
    about = folder / "src" / f"liger_models_{model_type}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: liger-models-{model_type}\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[liger]\nmodels-{model_type} = liger_models_{model_type}.plugin\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "liger", "validate", "model", model_type]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    statuses = [line.split("  ")[-1].strip() for line in done.stdout.splitlines()[1:]]
    skips = [status for status in statuses if status != "PASS"]
    assert done.returncode == 0 and len(statuses) == 9, done.stdout + done.stderr
    assert set(skips) <= {"SKIP (text-only model)", "SKIP (ruff is not installed)"}, done.stdout


@pytest.mark.parametrize("tier", Tier)
def test_what_is_made_outside_a_checkout_has_no_lint_either(tier, tmp_path):
    pytest.importorskip("ruff", reason="only where the linter is installed, as in the session third_party")
    new_kernel("mine", "soft_gate", tier, tmp_path)
    new_model("helium", "helium", tmp_path)
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--no-cache", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_outside_a_checkout(tmp_path):
    folder = new_kernel("mine", "soft_gate", Tier.elementwise, tmp_path)
    assert folder == tmp_path / "liger-kernels-mine"
    major, minor = map(int, liger.__version__.split(".")[:2])
    assert f'"liger-core>={major}.{minor},<{major}.{minor + 1}"' in (folder / "pyproject.toml").read_text()
    assert not (folder / "LICENSE").exists()  # the licence is its author's choice


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda root: new_kernel("norm", "rms_norm", Tier.fused, root), "there is an op 'rms_norm' already"),
        (lambda root: new_kernel("norm", "My-Op", Tier.fused, root), "'My-Op' cannot be a name here"),
        (lambda root: new_model("helium", "cwm", root), "exists: add a ModelPatch for 'cwm' to its plugin.py"),
    ],
)
def test_refusals(made, checkout, call, message):
    with pytest.raises(LigerError, match=message):
        call(checkout)


def test_a_model_type_that_transformers_does_not_know(tmp_path):
    with pytest.raises(ValueError, match="knows no model_type 'nothing'"):
        new_model("nothing", "nothing", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_plugin_of_another_shape():
    with pytest.raises(LigerError, match="add the op by hand"):
        add_to_plugin("import liger\n", "X = 1", ("X",))


READ = {  # model type: class -> fit
    "gemma2": {
        "Gemma2RMSNorm": 'fits.rms_norm(cast="gemma", eps="eps")',
        "Gemma2MLP": 'fits.gated_mlp(act="gelu_pytorch_tanh")',
        "Gemma2Attention": "fits.rope()",
    },
    "olmo2": {"Olmo2RMSNorm": 'fits.rms_norm(cast="fp32-weight")', "Olmo2Attention": 'fits.rope(cast="output")'},
    "olmo": {"OlmoLayerNorm": "fits.layer_norm(eps=1e-05)"},
    "cohere": {
        "CohereLayerNorm": "fits.cohere_norm()",
        "CohereAttention": 'fits.rope(layout="interleaved", cast="fp32")',
    },
    "glm4": {
        "Glm4MLP": 'fits.packed_mlp(act="silu")',
        "Glm4Attention": 'fits.rope(layout="interleaved", tables="first half")',
    },
    "nemotron": {"NemotronMLP": "fits.mlp()"},
    "starcoder2": {"torch.nn.modules.normalization.LayerNorm": "fits.layer_norm()"},
    "falcon_h1": {"FalconH1MLP": 'fits.gated_mlp(act="silu", multipliers=True)'},
    "qwen3_next": {"Qwen3NextRMSNormGated": "fits.gated_rms_norm(norm_before_gate=True)"},
    "gpt_oss": {"GptOssExperts": "fits.clamped_experts()", "GptOssAttention": 'fits.rope(tables="pair")'},
    "smollm3": {"SmolLM3Attention": "fits.rope()"},
    "llama4_text": {"Llama4TextAttention": "fits.rope_complex()"},
    "deepseek_v3": {
        "DeepseekV3Attention": 'fits.rope(layout="deinterleave", tables="first half", '
        'function="apply_rotary_pos_emb_interleave")'
    },
}


@pytest.mark.parametrize("model_type", READ)
def test_each_class_has_the_fit_that_suits_it(model_type):
    found = find(model_type).fits
    assert {cls: found.get(cls) for cls in READ[model_type]} == READ[model_type]


def test_without_liger_hf_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_hf.recognise", None)
    with pytest.raises(ValueError, match="needs liger-hf: pip install liger-hf"):
        find("gemma2")


def test_what_is_read_from_upstream():
    gemma2 = find("gemma2")
    assert gemma2.module == "transformers.models.gemma2.modeling_gemma2" and gemma2.unknown == []
    assert gemma2.head == 'fits.causal_lm_head(softcap="config.final_logit_softcapping")'
    assert find("nemotron").unknown == ["NemotronLayerNorm1P"]
    with pytest.raises(ValueError, match="no small Mamba2ForCausalLM can be made with .* declare it by hand"):
        find("mamba2")  # its heads must have the width that hidden_size gives
