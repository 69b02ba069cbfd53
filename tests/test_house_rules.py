"""The rules of the house that a machine can check. They hold for every package, whoever adds it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from liger import hookspecs
from liger._known import OPS
from liger.registry import registry

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from repo import Package, name_of, packages  # noqa: E402  (tools/ is no package)

PACKAGES = packages()
HEAVY = ("torch", "triton", "transformers")
ALIASES = {"core": "liger", "compat": "liger_kernel"}  # the two whose import name is not their own
every_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
TOOLS = sorted((ROOT / "tools").glob("*.py"))
SOURCES = sorted(file for package in PACKAGES.values() for file in package.source.rglob("*.py"))


def kind(package: Package) -> str:
    """`kernels`, `models`, `hf`, `core`, ..."""
    return package.label.split("-")[0]


def imports(file: Path) -> set[str]:
    """Top-level names that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - {"liger_kernel"} if file.name == "_peers.py" else found  # of benchmarks: the peer's own


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@every_package
def test_names_agree(package: Package):
    assert package.dist == f"liger-{package.label}"
    assert package.module == ALIASES.get(package.label, package.dist.replace("-", "_"))
    assert (package.source / package.module / "__init__.py").is_file()
    plugin = package.toml["project"].get("entry-points", {}).get("liger", {})
    if (package.source / package.module / "plugin.py").is_file():
        assert plugin == {package.label: f"{package.module}.plugin"}
    else:
        assert not plugin


@every_package
def test_each_package_has_what_a_package_has(package: Package):
    assert (package.source / package.module / "py.typed").is_file()
    assert (package.folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (package.folder / "README.md").read_text(encoding="utf-8").startswith(f"# {package.dist}\n")
    assert package.version == package.version_at(PACKAGES["liger-core"].version)
    assert package.toml["project"]["license"] == "Apache-2.0"
    assert "dynamic" not in package.toml["project"]
    assert "ruff" not in package.toml["tool"]  # the nearest settings would replace the root's, not add to them


@every_package
def test_a_package_with_code_has_tests(package: Package):
    code = [f for f in (package.source / package.module).rglob("*.py") if f.name != "__init__.py"]
    assert bool(package.settings.get("test")) == bool(code)
    assert package.tests is None or list(package.tests.glob("test_*.py"))


@every_package
def test_arrows_point_one_way(package: Package):
    allowed = {
        "core": set(),
        "kernels": {"liger"},
        "hf": {"liger"},
        "integrations": {"liger"},
        "models": {"liger", "liger_hf"} | {p.module for p in PACKAGES.values() if kind(p) == "kernels"},
    }
    if kind(package) not in allowed:
        return  # all and compat stand on everything
    ours = {p.module for p in PACKAGES.values()} - allowed[kind(package)] - {package.module}
    for file in package.source.rglob("*.py"):
        assert not imports(file) & ours, file


@every_package
def test_what_is_imported_is_declared(package: Package):
    declared = {name_of(requirement) for requirement in package.dependencies}
    for file in package.source.rglob("*.py"):
        for other in PACKAGES.values():
            if other is not package and other.module in imports(file):
                assert other.dist in declared, f"{file} imports {other.module}"


def test_a_model_package_brings_the_kernels_of_its_fits():
    for model_type, patch in registry().models.items():
        package = PACKAGES[name_of(registry().owner("model", model_type))]
        ops = {fit.op for fit in (*patch.fits.values(), patch.head) if fit is not None}
        assert {OPS[op] for op in ops} <= {name_of(requirement) for requirement in package.dependencies}, model_type


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_kernel_files_import_triton(file: Path):
    tools = "testing" in file.parts  # its interpreter and its launch counter drive triton itself
    assert "triton" not in imports(file) or re.fullmatch(r"_\w+_triton\.py", file.name) or tools


GONE = re.compile(r"tl\.make_block_ptr|tl\.advance\b|@triton\.autotune|tl\.atomic_")  # atomics: another order each time
TEAMS = ROOT / "packages/core/src/liger/_teams_triton.py"  # whose atomics add nothing up: each word has one writer


@pytest.mark.parametrize("file", [f for f in SOURCES if f != TEAMS], ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_that_triton_drops_or_that_hides_a_choice(file: Path):
    assert not GONE.search(file.read_text(encoding="utf-8"))


def test_import_is_lean():
    loaded = f"[m for m in {HEAVY} if m in sys.modules]"
    assert python(f"import sys, liger; print({loaded})") == "[]"
    # processor time, for how busy the machine is says nothing about us
    code = "import time; t = time.process_time(); import liger; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.2


def test_loading_every_plugin_is_lean():
    code = (
        "import sys; from liger.registry import registry; r = registry(); "
        f"print(r.problems, [str(i) for i in r.plugins.infos if i.error], [m for m in {HEAVY} if m in sys.modules])"
    )
    assert python(code) == "[] [] []"


def test_every_plugin_of_the_repository_is_installed():
    names = {entry.name for entry in entry_points(group="liger")}
    declared = {name for p in PACKAGES.values() for name in p.toml["project"].get("entry-points", {}).get("liger", {})}
    assert declared <= names


HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("liger_"))


def signature(hook: str) -> str:
    """The line that defines the hook, as it stands in the source."""
    tree = ast.parse(Path(str(hookspecs.__file__)).read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == hook)
    return f"def {hook}({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else None}"


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_are_documented_and_tested(hook: str):
    assert signature(hook) in (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    tests = "\n".join(f.read_text(encoding="utf-8") for f in (ROOT / "packages").rglob("tests/test_*.py"))
    tests += "\n".join(f.read_text(encoding="utf-8") for f in (ROOT / "tests").rglob("test_*.py"))
    assert f"def test_hook_{hook}(" in tests


def test_kernels_say_what_they_are():
    from liger.declare import load

    for op in registry().ops.values():
        reference = load(op.reference)
        for kernel in registry().kernels(op.name):
            if kernel.name != "reference":
                assert kernel.bytes, f"{kernel.id} does not say how many bytes it moves"
                assert kernel.profile, f"{kernel.id} does not say how it works"
                assert kernel.needs.devices or kernel.name == "torch", f"{kernel.id} does not say where it runs"
        tests = PACKAGES[name_of(registry().owner("op", op.name))].tests
        text = "\n".join(f.read_text(encoding="utf-8") for f in tests.glob("test_*.py")) if tests else ""
        assert op.name in text, f"{op.name} has no test"
        assert op.sweeps and op.production, f"{op.name} does not say what benchmarks and the compile gate run"
        assert {name for sweep in op.sweeps for point in sweep.points() for name in point} == set(op.sizes), op.name
        assert reference.__doc__, f"the reference of {op.name} has no docstring"


def test_every_check_is_documented():
    from liger.testing import backward, behaviour, gpu, profile, routes

    text = (ROOT / "docs" / "add-a-kernel.md").read_text(encoding="utf-8")
    modules = (backward, behaviour, gpu, profile, routes)
    assert not [name for module in modules for name in module.CHECKS if f"`{name}`" not in text]


def test_the_map_in_the_readme_is_the_tree():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {pattern.rstrip("/") for pattern in re.findall(r"`((?:packages|docs|tests|benchmarks)/[\w*/.-]*)`", text)}
    found = {pattern: set(ROOT.glob(pattern)) for pattern in named}
    assert not [pattern for pattern, files in found.items() if not files]
    everywhere = set().union(*found.values())
    for package in PACKAGES.values():
        assert {package.folder, package.source / package.module} & everywhere, package.dist


def test_ci_runs_the_test_command_of_the_readme():
    command = "pip install 'nox[uv]' && nox"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command.replace("install", "install --quiet") in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


LONGEST_FILE, LONGEST_BODY, LONGEST_KERNEL = 350, 40, 80
LISTS = {"testing/upstream.py"}  # one small function after another: the checks of a model


def body_lines(node: ast.FunctionDef) -> int:
    """Lines of a function's body without its docstring and without the functions inside it."""
    rest = node.body[1:] if ast.get_docstring(node) else node.body
    inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
    return sum(n.end_lineno - n.lineno + 1 for n in rest if n not in inner)


@pytest.mark.parametrize("file", [*SOURCES, *TOOLS], ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file: Path):
    text = file.read_text(encoding="utf-8")
    if not file.as_posix().endswith(tuple(LISTS)):
        assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            assert body_lines(node) <= (LONGEST_KERNEL if kernel else LONGEST_BODY), node.name
