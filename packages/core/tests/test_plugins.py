"""Loading plugins: one bad plugin is a row with its message, the others go on."""

import sys
import types
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

import liger
from liger.declare import Kernel, ModelPatch, Op
from liger.errors import DuplicateName, KernelUnavailable
from liger.plugins import PLUGIN_API, Plugins
from liger.registry import Registry, duplicate

OP = Op(name="double", public="m:double", reference="m:double_reference")


@pytest.fixture
def plugin(monkeypatch):
    """Make a module and an entry point for it: ``plugin("name", dist="d", **attributes)``."""

    def make(name, dist=None, version="1.0", module=None, **attributes):
        module = module or f"fake_{name}_{dist}".replace("-", "_")
        made = types.ModuleType(module)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, module, made)
        point = EntryPoint(name=name, value=module, group="liger")
        vars(point)["dist"] = SimpleNamespace(name=dist or f"liger-{name}", version=version)
        return point

    return make


def hook(function):
    return liger.hookimpl(function)


def ops(*declarations):
    def liger_register_ops():
        return list(declarations)

    return {"liger_register_ops": hook(liger_register_ops)}


def only_error(plugins):
    (info,) = plugins.failed
    return info.error


def test_hook_liger_register_ops(plugin):
    registry = Registry(Plugins([plugin("good", **ops(OP))]))
    assert registry.ops == {"double": OP}
    assert registry.owner("op", "double") == "liger-good 1.0"
    assert [k.id for k in registry.kernels("double")] == ["double/reference"]


def test_hook_liger_register_models(plugin):
    patch = ModelPatch(model_type="x", module="m", fits={}, head=None, mini="m:f")

    def liger_register_models():
        return [patch]

    registry = Registry(Plugins([plugin("good", liger_register_models=hook(liger_register_models))]))
    assert registry.models == {"x": patch}


def test_hook_liger_register_fits(plugin):
    fit = liger.Fit(id="f", op="double", adapter="m:a")

    def liger_register_fits():
        return [fit]

    registry = Registry(Plugins([plugin("good", liger_register_fits=hook(liger_register_fits))]))
    assert registry.fits == {"f": fit}


def test_hook_liger_unwrap_module(plugin):
    def liger_unwrap_module(module):
        return [module["inside"]] if module else None

    plugins = Plugins([plugin("good", liger_unwrap_module=hook(liger_unwrap_module))])
    assert [a for _, a in plugins.call("liger_unwrap_module", module={"inside": 3})] == [[3]]
    assert [a for _, a in plugins.call("liger_unwrap_module", module={})] == []


def test_hook_liger_rowwise_head(plugin):
    def liger_rowwise_head(module):
        return True if module == "mine" else None

    plugins = Plugins([plugin("good", liger_rowwise_head=hook(liger_rowwise_head))])
    assert [a for _, a in plugins.call("liger_rowwise_head", module="mine")] == [True]
    assert not any(a for _, a in plugins.call("liger_rowwise_head", module="another"))


def test_hook_liger_register_commands(plugin):
    def liger_register_commands(app):
        app.append("command")

    app = []
    Plugins([plugin("good", liger_register_commands=hook(liger_register_commands))]).call(
        "liger_register_commands", app=app
    )
    assert app == ["command"]


def test_failing_import_is_a_row_and_the_others_load(plugin):
    missing = EntryPoint(name="broken", value="no_such_module_at_all", group="liger")
    vars(missing)["dist"] = SimpleNamespace(name="liger-broken", version="2.5")
    plugins = Plugins([plugin("good", **ops(OP)), missing])
    (info,) = plugins.failed
    for part in (
        "broken",
        "liger-broken 2.5",
        "no_such_module_at_all",
        "ModuleNotFoundError",
        "LIGER_DISABLE_PLUGINS=broken",
    ):
        assert part in str(info)
    assert Registry(plugins).ops == {"double": OP}


def test_raising_hook_is_a_row_and_the_others_load(plugin):
    def liger_register_ops():
        raise RuntimeError("boom")

    plugins = Plugins([plugin("bad", liger_register_ops=hook(liger_register_ops)), plugin("good", **ops(OP))])
    assert Registry(plugins).ops == {"double": OP}
    assert only_error(plugins) == "liger_register_ops raised RuntimeError: boom"


def test_misspelt_hook_says_which_was_meant(plugin):
    def liger_register_op():
        return []

    plugins = Plugins([plugin("typo", liger_register_op=hook(liger_register_op)), plugin("good", **ops(OP))])
    assert only_error(plugins) == "unknown hook 'liger_register_op'; did you mean 'liger_register_ops'?"
    assert Registry(plugins).ops == {"double": OP}


def test_unknown_hook_argument(plugin):
    def liger_unwrap_module(modul):
        return None

    assert "modul" in only_error(Plugins([plugin("typo", liger_unwrap_module=hook(liger_unwrap_module))]))


def test_one_name_claimed_twice_loads_neither(plugin):
    plugins = Plugins([plugin("same", dist="one"), plugin("same", dist="two", version="3")])
    assert len(plugins.failed) == 2
    for info in plugins.failed:
        assert "'same' is claimed by one 1.0 and two 3; neither is loaded" in info.error


@pytest.mark.parametrize(
    "api, fix", [(PLUGIN_API - 1, "newer version of the plugin"), (PLUGIN_API + 1, "newer liger-core")]
)
def test_other_plugin_api_is_a_row(plugin, api, fix):
    error = only_error(Plugins([plugin("old", LIGER_PLUGIN_API=api, **ops(OP))]))
    assert f"plugin API {api}" in error and fix in error


def test_disabled_plugins(plugin, monkeypatch):
    monkeypatch.setenv("LIGER_DISABLE_PLUGINS", "good, nonexistent")
    plugins = Plugins([plugin("good", **ops(OP)), plugin("other")])
    assert [i.disabled for i in plugins.infos] == [True, False]
    assert Registry(plugins).ops == {}
    assert plugins.unknown_disabled == ["nonexistent"]
    assert "LIGER_DISABLE_PLUGINS" in str(plugins.infos[0])


@pytest.mark.parametrize(
    "declaration, kind, name",
    [
        (OP, "op", "double"),
        (Kernel(op="double", name="fast", fn="m:f", rank=10), "kernel", "double/fast"),
    ],
)
def test_duplicate_declarations_name_both_owners_and_use_neither(plugin, declaration, kind, name):
    registry = Registry(Plugins([plugin("a", **ops(declaration)), plugin("b", **ops(declaration))]))
    assert registry.problems == [
        f"{kind} {name!r} is declared by liger-a 1.0 and liger-b 1.0; neither is used: remove one of them"
    ]
    assert registry.ops == {} and registry.kernels("double") == []
    assert isinstance(duplicate(kind, name, ["x", "y"]), DuplicateName)


def test_something_else_than_a_declaration(plugin):
    registry = Registry(Plugins([plugin("a", **ops("rms_norm"))]))
    assert registry.problems == ["liger-a 1.0: liger_register_ops returned 'rms_norm', not a declaration"]


def test_unknown_op_says_what_to_install():
    registry = Registry(Plugins([]))
    with pytest.raises(KernelUnavailable, match="pip install liger-kernels-norm"):
        registry.op("rms_norm")
    with pytest.raises(KernelUnavailable, match="installed ops: none"):
        registry.op("nonsense")


def test_unknown_names_in_options_and_prefer(plugin):
    op = Op(name="double", public="m:d", reference="m:r", options={"scale": liger.Option(default=1.0)})
    registry = Registry(Plugins([plugin("a", **ops(op))]))
    with pytest.raises(TypeError, match=r"'scal' is not an option of double; it has scale \(did you mean 'scale'\?\)"):
        registry.check_options({"double": {"scal": 2}})
    with pytest.raises(KernelUnavailable, match="no kernel of double has this name; known: reference"):
        registry.check_prefer({"double": "fast"})
    with pytest.raises(KernelUnavailable, match="no kernel of any op"):
        registry.check_prefer({"*": "fast"})
    registry.check_prefer({"*": "reference", "double": "reference"})


# -- One bad plugin ----------------------------------------------------------------------------------------------------
def returning(value, name="liger_register_ops"):
    def hooked():
        return value() if callable(value) else value

    hooked.__name__ = name
    return {name: hook(hooked)}


def leaving():
    raise SystemExit(3)


def leaving_later():
    yield Op(name="half", public="m:h", reference="m:h")
    raise SystemExit(3)


class NoRepr:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("api", ["1", None, 1.0, True])
def test_plugin_api_that_is_no_number_is_a_row(plugin, api):
    plugins = Plugins([plugin("bad", LIGER_PLUGIN_API=api, **ops(OP)), plugin("good", **ops(OP))])
    assert only_error(plugins) == f"its LIGER_PLUGIN_API is {api!r}, expected a whole number such as {PLUGIN_API}"
    assert Registry(plugins).ops == {"double": OP}


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (5, "liger_register_ops returned 5, expected a list of declarations"),
        (0, "liger_register_ops returned 0, expected a list of declarations"),
        ("rms_norm", "liger_register_ops returned 'rms_norm', expected a list of declarations"),
        (OP, "expected a list of declarations"),
        (NoRepr(), "liger_register_ops returned an object of type NoRepr, expected"),
        (leaving, "liger_register_ops raised SystemExit: 3"),
        (leaving_later, "liger_register_ops raised SystemExit: 3"),
    ],
)
def test_hook_that_returns_no_declarations_is_a_row(plugin, returned, error):
    plugins = Plugins([plugin("bad", **returning(returned)), plugin("good", **ops(OP))])
    registry = Registry(plugins)
    assert error in only_error(plugins)
    assert "liger-bad 1.0" in str(plugins.failed[0])
    assert registry.ops == {"double": OP} and registry.problems == []


@pytest.mark.parametrize("returned", [(OP,), {OP.name: OP}.values(), lambda: (d for d in [OP])])
def test_hook_may_return_any_iterable(plugin, returned):
    registry = Registry(Plugins([plugin("good", **returning(returned))]))
    assert registry.ops == {"double": OP} and not registry.plugins.failed


def test_import_that_exits_is_a_row(plugin, monkeypatch, tmp_path):
    (tmp_path / "fake_exits.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    bad = EntryPoint(name="bad", value="fake_exits", group="liger")
    plugins = Plugins([bad, plugin("good", **ops(OP))])
    assert only_error(plugins) == "importing it raised SystemExit: 3"
    assert Registry(plugins).ops == {"double": OP}


def test_ctrl_c_is_nobodys_row(plugin):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Registry(Plugins([plugin("slow", **returning(interrupted))]))


def test_one_module_under_two_names_is_a_row(plugin):
    point = plugin("a", **ops(OP))
    plugins = Plugins([point, EntryPoint(name="b", value=point.value, group="liger")])
    assert "registering it raised ValueError" in only_error(plugins)
    assert Registry(plugins).ops == {"double": OP}


def test_kernel_of_an_unknown_op_is_a_problem(plugin):
    kernels = [Kernel(op=op, name="k", fn="m:f", rank=1) for op in ("doubel", "rms_norm")]
    registry = Registry(Plugins([plugin("a", **ops(OP, *kernels))]))  # rms_norm exists, though not here
    assert registry.problems == [
        "liger-a 1.0: kernel 'doubel/k' is for the op 'doubel', which no installed package declares "
        "(did you mean 'double'?); it is never used"
    ]


def test_declaration_of_another_hook_is_a_problem(plugin):
    patch = ModelPatch(model_type="x", module="m", fits={}, head=None, mini="m:f")
    wrong = plugin("a", **ops(patch), **returning([OP], "liger_register_models"))
    registry = Registry(Plugins([wrong]))
    assert registry.problems == [
        "liger-a 1.0: liger_register_ops returned the model 'x', which belongs into liger_register_models; "
        "it is not used",
        "liger-a 1.0: liger_register_models returned the op 'double', which belongs into liger_register_ops; "
        "it is not used",
    ]
    assert registry.ops == {} and registry.models == {}


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (Op(name=["x"], public="m:f", reference="m:f"), "whose name is not a string"),
        (Kernel(op="double", name="k", fn="m:f", rank="high"), "has rank 'high', expected a number"),
    ],
)
def test_declaration_with_fields_of_a_wrong_type(plugin, declaration, problem):
    registry = Registry(Plugins([plugin("a", **ops(declaration)), plugin("good", **ops(OP))]))
    assert problem in registry.problems[0] and "liger-a 1.0" in registry.problems[0]
    assert [k.name for k in registry.kernels("double")] == ["reference"]


def test_problem_of_a_duplicate_model_type(plugin):
    patch = ModelPatch(model_type="x", module="m", fits={}, head=None, mini="m:f")
    both = [plugin(name, **returning([patch], "liger_register_models")) for name in ("a", "b")]
    registry = Registry(Plugins(both))
    assert registry.models == {}
    assert registry.problem("model", "x") == (
        "model 'x' is declared by liger-a 1.0 and liger-b 1.0; neither is used: remove one of them"
    )
    assert registry.problem("model", "y") is None and registry.problem("op", "x") is None


def test_preferences_and_options_of_a_wrong_type(plugin):
    registry = Registry(Plugins([plugin("a", **ops(OP))]))
    for call, message in (
        (lambda: registry.check_options(5), "options is 5, expected a mapping from op to a mapping"),
        (lambda: registry.check_options({"double": 5}), r"options\['double'\] is 5, expected a mapping from option"),
        (lambda: registry.check_prefer({"double": 5}), "prefer has 'double': 5, expected the names"),
        (lambda: liger.prefer(5).__enter__(), "prefer is 5, expected a kernel's name"),
        (lambda: liger.options(rms_norm=5).__enter__(), r"options\['rms_norm'\] is 5"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


# -- The command line --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", [["plugins"], ["plugins", "--json"], ["doctor"], ["doctor", "--json"]])
def test_commands_show_odd_plugins(plugin, command, monkeypatch):
    from typer.testing import CliRunner

    from liger import registry
    from liger.cli import app, console

    monkeypatch.setattr(console, "width", 200)  # it may have been made with another width in its environment

    def odd():
        raise ValueError("[/red] [bold]")

    broken = plugin("[/b]", dist="liger-odd", version=None, module="fake_odd", **returning(odd))
    nameless = plugin("nameless", **returning(5))
    vars(nameless)["dist"] = SimpleNamespace(name=None, version=None)
    previous = registry.use(Registry(Plugins([broken, nameless, plugin("good", **ops(OP))])))
    try:
        result = CliRunner().invoke(app, command)
    finally:
        registry.use(previous)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "[/red] [bold]" in result.output


def test_version():
    from typer.testing import CliRunner

    from liger.cli import app

    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output == f"liger {liger.__version__}\n"


def test_doctor_names_packages_of_different_versions():
    from liger.doctor import _version_problems

    same = {"liger-core": "0.1.0", "liger-compat": "0.8.5.0.1.0", "liger-kernel": "0.8.2"}
    assert _version_problems(same) == []
    for other in ({"liger-hf": "0.2.0"}, {"liger-compat": "0.8.5.0.2.0"}):
        (problem,) = _version_problems({**same, **other})
        assert "different versions are installed (0.1.0, 0.2.0)" in problem
