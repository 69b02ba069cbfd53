"""C24: no GPU, and packages that cannot be imported."""

import os
import subprocess
import sys

BLOCK = """
import sys, time, warnings
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
start = time.perf_counter(); import liger; assert time.perf_counter() - start < 2
import torch
y = liger.ops.rms_norm(torch.ones(2, 8), torch.ones(8), eps=1e-6)
assert torch.allclose(y, torch.ones(2, 8))
found = liger.explain("rms_norm", device="cpu", history=True)
assert any("-> reference" in line for line in found.history), found.history
"""


def run(code, *blocked):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    code = f"BLOCKED = {blocked!r}\n{BLOCK}\n{code}\nprint('fine')"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "fine", done.stderr
    return done.stderr


def test_c24_without_triton_and_transformers():
    code = """
warnings.simplefilter("error")
class GPT2(torch.nn.Module):
    config = type("Config", (), {"model_type": "gpt2"})()
model = GPT2()
report = liger.autopatch(model)
assert type(model) is GPT2 and "'gpt2'" in report.rows[0].reason and not report.applied
"""
    assert run(code, "triton", "transformers") == ""


def test_c24_gpt2_without_triton():
    code = """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64))
before = {n: (type(m), dict(m.__dict__)) for n, m in model.named_modules()}
with warnings.catch_warnings(record=True) as caught:
    report = liger.autopatch(model)
assert not caught and {row.op for row in report.applied} == {"layer_norm", "linear_cross_entropy"}
liger.unpatch(model)
for name, module in model.named_modules():
    kind, held = before[name]
    assert type(module) is kind and module.__dict__.keys() == held.keys()
    assert all(module.__dict__[k] is v for k, v in held.items())
"""
    run(code, "triton")


def test_llama_without_triton_is_served_by_torch():
    code = """
from liger.testing.models import Pair, expect_equal_step, find
pair = Pair(find("llama"), "cpu")
plain, patched = pair.both()
expect_equal_step(plain, patched, **pair.batch())
"""
    run(code, "triton")
