"""Packages from outside this repository, built as real wheels, installed by a real installer, found and used."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build(source, out):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob(f"{source.name.replace('-', '_')}-*.whl")
    return wheel


def install(wheel, site):
    uv = shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)


def run(code, site):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheels")
    return {name: build(HERE / name, out) for name in ("acme-kernels", "acme-cwm")}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site"


def test_kernel_for_a_private_device_type(wheels, site):
    install(wheels["acme-kernels"], site)
    code = """
import liger, torch
from acme_kernels.device import AcmeTensor
from liger.testing import count_ops
x, w = torch.randn(3, 64), torch.randn(64)
with count_ops() as counts:
    y = liger.ops.rms_norm(AcmeTensor(x), AcmeTensor(w), eps=1e-5, offset=1.0)
assert counts == {("rms_norm", "acme"): 1}, counts
expected = liger.ops.rms_norm(x, w, eps=1e-5, offset=1.0)
assert torch.allclose(y.inner, expected, rtol=1e-6, atol=1e-6)
ours, theirs = [[t.clone().requires_grad_() for t in (x, w)] for _ in range(2)]
theirs = [AcmeTensor(t.detach()).requires_grad_() for t in theirs]
for tensors, dy in ((ours, torch.ones(3, 64)), (theirs, AcmeTensor(torch.ones(3, 64)))):
    liger.ops.rms_norm(*tensors, eps=1e-5, offset=1.0).backward(dy)
for found, wanted in zip(theirs, ours):
    assert torch.allclose(found.grad.inner, wanted.grad, rtol=1e-5, atol=1e-5)
with count_ops() as counts:
    liger.ops.rms_norm(x, w)
assert ("rms_norm", "acme") not in counts  # the CPU is not its device
wide = torch.randn(3, 65)
with count_ops() as counts:
    try:
        liger.ops.rms_norm(AcmeTensor(wide), None)
    except AttributeError:
        pass  # the reference does not know this device's tensors; what counts is that it was chosen
assert counts == {("rms_norm", "reference"): 1}, counts
try:
    liger.ops.rms_norm(AcmeTensor(wide), None, kernel="acme")
except liger.errors.KernelUnavailable as error:
    assert "H=65 exceeds 64" in str(error)
print(liger.explain("rms_norm"))
"""
    assert "rms_norm/acme  rank 20  acme-kernels 2.1  needs: acme, float32, H <= 64" in run(code, site)


def test_model_plugin(wheels, site):
    install(wheels["acme-cwm"], site)
    code = """
import liger
from liger.testing import model_checks
from liger.testing.models import Pair, find
for check in model_checks("cwm"):
    check.values[0]("cpu")
report = liger.plan(Pair(find("cwm"), "cpu").plain())
print(report.to_dict()["rows"][0]["owner"], len(report.applied), len(report.skipped))
"""
    assert run(code, site).strip().endswith("acme-cwm 0.3 10 0")


def test_model_plugin_written_for_an_older_plugin_api(wheels, site):
    install(wheels["acme-cwm"], site)
    plugin = site / "acme_cwm" / "plugin.py"
    plugin.write_text(plugin.read_text().replace("LIGER_PLUGIN_API = 1", "LIGER_PLUGIN_API = 0"))
    code = """
import liger
from liger.registry import registry
from transformers import AutoModelForCausalLM, CwmConfig
sizes = dict(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
config = CwmConfig(vocab_size=64, num_hidden_layers=1, **sizes)
report = liger.autopatch(AutoModelForCausalLM.from_config(config))
assert {row.reason for row in report.applied} == {"recognised"}  # as if it were not installed
assert "llama" in registry().models  # the others go on
print(*registry().plugins.failed)
"""
    reason = run(code, site)
    assert "acme-cwm 0.3" in reason
    assert "written for plugin API 0, this liger has 1; install a newer version of the plugin" in reason


def test_removing_the_package_removes_the_feature(site):
    code = """
from liger.registry import registry
print("cwm" in registry().models, registry().kernels("rms_norm")[0].name)
"""
    assert run(code, site).strip() == "False triton"
