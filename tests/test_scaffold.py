"""`liger new`: what it makes is installed as a real wheel and passes its own tests at once."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import liger
from liger.errors import LigerError
from liger.scaffold import Tier, add_to_plugin, new_kernel, new_model
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
        new_model("qwen", "qwen2", checkout),
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


@pytest.mark.slow
def test_what_is_made_passes_its_own_tests(made, tmp_path):
    site = tmp_path / "site"
    install(made, site)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "--import-mode=importlib",
        *(str(f / "tests") for f in made),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    skipped = re.findall(r"^SKIPPED .*$", done.stdout, re.MULTILINE)
    assert passed > 100 and all("CUDA device" in line for line in skipped), done.stdout[-2000:]
    gate = [sys.executable, str(ROOT / "tools" / "compile_gate.py"), "--targets", "sm90", "gfx942"]
    gate += ["--kernels", "soft_gate/triton", "gated_norm/triton", "unit_length/triton"]
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(gate, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stdout.count(" 0 bad\n") == 6, done.stdout + done.stderr


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
        "packages/models/qwen",
    }
    for folder in made:
        text = (folder / "pyproject.toml").read_text()
        assert f'version = "{version}"' in text and f'"liger-core=={version}"' in text
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        assert (folder / "README.md").read_text().startswith(f"# liger-{folder.name.replace('qwen', 'models-qwen')}\n")


def test_the_plugin_keeps_what_it_had(made, checkout):
    before = (ROOT / "packages/kernels-norm/src/liger_kernels_norm/plugin.py").read_text()
    after = (checkout / "packages/kernels-norm/src/liger_kernels_norm/plugin.py").read_text()
    lines = after.splitlines()
    gone = [line for line in before.splitlines() if line not in lines and not line.startswith("from liger import ")]
    assert gone == [re.search(r"    return \[.*\]", before)[0]]
    assert "UNIT_LENGTH, UNIT_LENGTH_TRITON]" in after


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
        (lambda root: new_model("qwen", "qwen3", root), "exists: add a ModelPatch for 'qwen3' to its plugin.py"),
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


def test_what_is_read_from_upstream():
    gemma2 = find("gemma2")
    assert gemma2.module == "transformers.models.gemma2.modeling_gemma2"
    assert gemma2.fits["Gemma2RMSNorm"] == 'fits.rms_norm(cast="gemma", eps="eps")'
    assert gemma2.head == 'fits.causal_lm_head(softcap="config.final_logit_softcapping")'
    olmo2 = find("olmo2")  # rotates in fp32, which the op does not
    assert "Olmo2Attention" in olmo2.unknown and olmo2.fits["Olmo2RMSNorm"] == 'fits.rms_norm(cast="fp32-weight")'
