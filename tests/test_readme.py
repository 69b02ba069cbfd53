"""Every fenced block of README.md and of the docs is run.

The Python of a page runs in one namespace and its output is compared with the text below it; commands are checked or
executed, YAML and TOML read. A block that begins with `# needs 2 GPUs` names hardware that tests do not have: it is
only compiled.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest
import yaml
from typer.testing import CliRunner

from liger import hookspecs
from liger.registry import registry
from liger.scaffold import app

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from repo import name_of, packages  # noqa: E402  (tools/ is no package)

PACKAGES = packages()
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
HARDWARE = re.compile(r"# needs (a|\d+) ")


def blocks(file):
    """The fenced blocks of a page: (language, text)."""
    return re.findall(r"(?m)^```(\w*)\n([\s\S]*?)^```$", file.read_text(encoding="utf-8"))


def split(line):
    """The commands of a line, each as words; comments are dropped."""
    words = shlex.split(line, comments=True)
    while words:
        end = words.index("&&") if "&&" in words else len(words)
        yield words[:end]
        words = words[end + 1 :]


COMMANDS = [
    words
    for file in PAGES
    for kind, text in blocks(file)
    if kind == "sh" and not HARDWARE.match(text)
    for line in text.splitlines()
    for words in split(line)
]
SHELL = [words for at, words in enumerate(COMMANDS) if words not in COMMANDS[:at]]


@every_page
def test_every_block_is_of_a_kind_that_is_run(file):
    fences = re.findall(r"(?m)^\s*(?:```|~~~).*$", file.read_text(encoding="utf-8"))
    found = blocks(file)
    assert len(fences) == 2 * len(found), "a fence that is indented or has more than a language is not seen"
    assert {kind for kind, _ in found} <= {"python", "text", "sh", "yaml", "toml"}


@every_page
def test_python_prints_what_the_page_shows(file, no_modules_left):
    names, printed = {"__name__": file.stem}, ""
    for kind, text in blocks(file):
        if kind == "python":
            code = compile(text, file.name, "exec")
            if HARDWARE.match(text):
                continue
            before = dict(names)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed = out.getvalue()
            check_hooks({name: value for name, value in names.items() if before.get(name) is not value})
        elif kind == "text":
            assert printed == text


@pytest.fixture
def no_modules_left():
    """Pages make modules that stand for a reader's; these have no spec."""
    before = set(sys.modules)
    yield
    for name in [n for n, module in sys.modules.items() if n not in before and getattr(module, "__spec__", 0) is None]:
        del sys.modules[name]


def check_hooks(names):
    """Hooks that a block defines exist, and return something."""
    plugins = pluggy.PluginManager("liger")
    plugins.add_hookspecs(hookspecs)
    plugins.register(SimpleNamespace(**names))
    plugins.check_pending()
    for hook in [name for name in names if name.startswith("liger_register_") and "commands" not in name]:
        assert getattr(plugins.hook, hook)()


@every_page
def test_data_can_be_read(file):
    for kind, text in blocks(file):
        if kind in ("yaml", "toml"):
            assert yaml.safe_load(text) if kind == "yaml" else tomllib.loads(text)


@pytest.mark.parametrize("words", SHELL, ids=" ".join)
def test_command(words, tmp_path):
    match words:
        case [nox, *arguments] if Path(nox).name == "nox":
            check_nox(arguments, tmp_path)
        case ["uvx", "--from", "nox[uv]", "nox", *arguments] | ["pipx", "run", "--spec", "nox[uv]", "nox", *arguments]:
            check_nox(arguments, tmp_path)
        case ["python3", "-m", "venv", _]:
            pass
        case [pip, "install", *arguments] if Path(pip).name == "pip":
            check_pip(arguments)
        case ["liger", "tune", *ops]:  # needs a GPU
            assert ops and set(ops) <= registry().ops.keys()
        case ["liger", *arguments]:
            env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}  # doctor calls that a problem
            subprocess.run([sys.executable, "-m", "liger", *arguments], check=True, env=env, cwd=tmp_path)
        case ["python" | "torchrun" | "accelerate", *arguments]:  # a program of examples/, which tests of its own run
            programs = [word for word in arguments if word.endswith(".py")]
            assert programs and all((ROOT / program).is_file() for program in programs)
        case _:
            pytest.fail(f"no test knows how to check {words}")


def check_nox(arguments, folder):
    """Each session exists, or is that of a package the page itself starts; `new` is run."""
    if arguments in ([], ["-l"]):
        return
    flag, session, *rest = arguments
    assert flag == "-s"
    if rest:
        assert rest[0] == "--"
    if session == "new":
        result = CliRunner().invoke(app, [*rest[1:], "--root", str(folder)])
        assert result.exit_code == 0, result.output
    elif found := re.fullmatch(r"tests\((.+)\)", session):
        assert found[1] in {package.label for package in PACKAGES.values() if package.tests} | started()
    else:
        assert session in sessions()


def sessions():
    """Names of the sessions in the noxfile."""
    functions = [node for node in ast.parse(NOXFILE).body if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if any("nox.session" in ast.unparse(d) for d in f.decorator_list)}


def started():
    """Labels of the packages that the page starts with `new`."""
    made = [words[words.index("--") + 1 :] for words in SHELL if words[:3] == ["nox", "-s", "new"]]
    return {f"{'models' if kind == 'model' else 'kernels'}-{name}" for kind, name, *_ in made}


def check_pip(arguments):
    """Each requirement is a distribution of this repository, or nox."""
    if arguments[0] == "--find-links":
        assert 'WHEELS = ROOT / "build" / "wheels"' in NOXFILE and arguments[1] == "build/wheels"
        arguments = arguments[2:]
    assert arguments and {name_of(requirement) for requirement in arguments} <= {*PACKAGES, "nox"}
