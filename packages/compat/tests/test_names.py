"""The peer's names can be imported, cost nothing before they are used, and say so where there is no kernel."""

import importlib
import operator
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.version import Version

import liger_kernel
from liger_kernel import _beside, chunked_loss, ops, transformers, utils
from liger_kernel._names import HOMES, VIEWS, WHERE, Missing
from liger_kernel._types import FLAGS, FUNCTIONS

PUBLIC = sorted({name for names in VIEWS.values() for name in names.split()})


@pytest.mark.parametrize("path", VIEWS)
def test_every_name_of_a_module_can_be_imported(path):
    module = importlib.import_module(f"liger_kernel.{path}")
    assert set(VIEWS[path].split()) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(ImportError):
        exec(f"from liger_kernel.{path} import LigerNothing")


@pytest.mark.parametrize("home", HOMES)
def test_every_home_holds_what_the_table_says_and_is_reached(home):
    module = importlib.import_module(f"liger_kernel.{home}")
    for theirs in HOMES[home].split():
        name, _, ours = theirs.partition("=")
        path, _, last = name.rpartition(".")
        assert hasattr(module, ours or name)
        assert last in (VIEWS[path].split() if path else PUBLIC) or home == "env_report"


@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in WHERE and not n.startswith(("apply_liger_", "MODEL_"))])
def test_what_has_no_kernel_says_so_when_it_is_used(name):
    path = next(path for path in VIEWS if name in VIEWS[path].split())
    found = getattr(importlib.import_module(f"liger_kernel.{path}"), name)
    assert issubclass(found, Missing)
    for use in (found, found.apply):
        with pytest.raises(NotImplementedError, match=rf"{name} has no kernel in Liger yet: see docs/migrate"):
            use(1, in_place=True)
    page = (Path(__file__).parents[3] / "docs" / "migrate-from-liger-kernel.md").read_text(encoding="utf-8")
    assert "## What has no kernel yet" in page and f"`{name}`" in page


def test_a_name_that_means_two_things():
    assert ops.LigerFusedLinearJSDFunction is ops.fused_linear_jsd.LigerFusedLinearJSDFunction
    assert chunked_loss.jsd_loss.LigerFusedLinearJSDFunction is not ops.LigerFusedLinearJSDFunction
    assert chunked_loss.functional.liger_fused_linear_jsd is not transformers.functional.liger_fused_linear_jsd


def test_what_is_there():
    assert utils.infer_device() in ("cpu", "cuda", "xpu", "npu", "mps") and utils.is_peft_available()
    assert transformers.is_transformers_available() and not utils.is_npu_available()


def test_what_the_helpers_answer():
    assert ops.utils.is_hip() == (torch.version.hip is not None)
    calls = (lambda *a, **k: ("before", a, k), lambda *a, **k: ("after", a, k))
    assert utils.transformers_version_dispatch("4.48", *calls, (1,), (2,), {"x": 3}) == ("after", (2,), {})
    assert utils.transformers_version_dispatch("99.0", *calls, (1,), (2,), {"x": 3}) == ("before", (1,), {"x": 3})
    if utils.infer_device() == "cpu":
        assert utils.infer_comm_backend() == "gloo"
        with pytest.raises(RuntimeError, match="there is only a CPU"):
            utils.get_total_gpu_memory()


@pytest.mark.parametrize("n", [1, 3, 1024, 1025, 2048, 4097, 8192, 16385, 65536])
def test_settings_hold_a_row_in_one_block(n):
    block, warps = ops.utils.calculate_settings(n)
    assert n <= block < 2 * n and block & (block - 1) == 0
    least = {4: 0, 8: 2048, 16: 8192, 32: 32768}
    most = 16 if ops.utils.is_hip() else 32
    assert warps == min(most, max(count for count, start in least.items() if block >= start))


def test_settings_of_a_row_that_is_too_long_raise():
    with pytest.raises(RuntimeError, match="n is 65537, expected at most 65536"):
        ops.utils.calculate_settings(65537)


def test_a_method_gets_contiguous_tensors():
    class Context:
        @ops.utils.ensure_contiguous
        def forward(self, x, n, *, y):
            """Doubled."""
            assert x.is_contiguous() and y.is_contiguous() and n == 2
            return x * n + y

    turned = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(Context().forward(turned, 2, y=turned), 3 * turned)
    assert Context.forward.__name__ == "forward" and Context.forward.__doc__ == "Doubled."


def test_versions_are_compared():
    assert ops.utils.compare_version("torch", operator.ge, "2.0")
    assert not ops.utils.compare_version("torch", operator.lt, "2.0")
    assert not ops.utils.compare_version("no_such_package", operator.ne, "2.0")


def test_a_kernel_without_an_answer_says_so_when_it_is_launched():
    with pytest.raises(NotImplementedError, match="liger_cross_entropy_kernel has no kernel in Liger yet"):
        ops.cross_entropy.liger_cross_entropy_kernel[(1,)]
    assert not hasattr(ops, "liger_cross_entropy_kernel")


def test_a_module_of_transformers_has_what_it_imports_of_ops():
    from liger_kernel.transformers.jsd import LigerJSDFunction

    assert LigerJSDFunction is ops.LigerJSDFunction


def test_a_module_is_the_same_however_it_is_reached():
    from liger_kernel.transformers import LigerRMSNorm
    from liger_kernel.transformers.rms_norm import LigerRMSNorm as Same

    assert LigerRMSNorm is Same is liger_kernel.transformers.rms_norm.LigerRMSNorm


def test_importing_is_lean():
    heavy = "{'torch', 'transformers', 'triton'} & {*sys.modules}"
    code = f"import sys, liger_kernel.ops.rms_norm, liger_kernel.transformers.functional; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_unknown_model_type_has_no_function():
    with pytest.raises(AttributeError, match="no package declares model type 'gpt1'"):
        transformers.apply_liger_kernel_to_gpt1  # noqa: B018
    assert callable(transformers.apply_liger_kernel_to_cohere)  # ours alone


@pytest.mark.parametrize("path", VIEWS)
def test_a_view_has_its_own_names_and_no_other(path):
    module = importlib.import_module(f"liger_kernel.{path}")
    for name in ("_apply", "_apply_nonsense", "apply_liger_kernel_to_gpt1", "__wrapped__"):
        assert not hasattr(module, name)
    applies = path in ("transformers", "transformers.monkey_patch")
    assert hasattr(module, "apply_liger_kernel_to_cohere") == applies  # ours alone
    assert hasattr(module, "_apply_liger_kernel_to_instance") == applies


def test_each_flag_and_each_row_of_the_tables_is_used():
    words = {word.lstrip("-") for row in FUNCTIONS.values() for word in row.split()} - {"model", "*"}
    assert words == set(FLAGS)


# -- What trainers look at ---------------------------------------------------------------------------------------------
def test_the_version_is_that_of_an_interface_that_trainers_accept():
    from transformers.utils import is_liger_kernel_available

    assert is_liger_kernel_available()
    assert Version(metadata.version("liger-compat")) == Version(liger_kernel.__version__) >= Version("0.8.2")


def test_trl_accepts_it():
    utils = pytest.importorskip("trl.import_utils", reason="trl is not installed")
    assert utils.is_liger_kernel_available()


@pytest.mark.parametrize("name", _beside.PEERS)
def test_the_peer_beside_it_is_an_error_that_names_both(monkeypatch, tmp_path, name):
    info = tmp_path / f"{name.replace('-', '_')}-0.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9.1\n")
    _beside.refuse()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=rf"{name} 0.9.1 and liger-compat are both installed.*pip uninstall"):
        _beside.refuse()
    sys.modules.pop("liger_kernel.plugin", None)
    with pytest.raises(ImportError, match="both installed"):  # what `liger doctor` shows as the row of this plugin
        importlib.import_module("liger_kernel.plugin")


def test_the_report_of_the_environment_is_that_of_the_doctor(capsys):
    from liger_kernel.env_report import print_env_report

    print_env_report()
    printed = capsys.readouterr().out
    assert printed.startswith("versions") and f"liger-compat: {liger_kernel.__version__}" in printed
    assert "different versions" not in printed
