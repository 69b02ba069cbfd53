"""Every block of README.md is run: Python in one namespace, its output compared; commands checked or executed."""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest
from typer.testing import CliRunner

from liger import hookspecs
from liger.registry import registry
from liger.scaffold import app

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from repo import name_of, packages  # noqa: E402  (tools/ is no package)

PACKAGES = packages()
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")
DOCS = sorted((ROOT / "docs").glob("*.md"))
HARDWARE = re.compile(r"# needs (a|\d+) ")  # what needs 2 processes is run by test_parallel.py and test_zero.py


def blocks(file):
    """The fenced blocks of a page: (language, text)."""
    return re.findall(r"(?m)^```(\w*)\n([\s\S]*?)^```$", file.read_text(encoding="utf-8"))


BLOCKS = blocks(ROOT / "README.md")


def split(line):
    """The commands of a line, each as words; comments are dropped."""
    words = shlex.split(line, comments=True)
    while words:
        end = words.index("&&") if "&&" in words else len(words)
        yield words[:end]
        words = words[end + 1 :]


SHELL = [words for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() for words in split(line)]


def test_every_block_is_of_a_kind_that_is_run():
    assert {kind for kind, _ in BLOCKS} == {"python", "text", "sh"}


def test_python_prints_what_the_page_shows():
    names, printed = {}, ""
    for kind, text in BLOCKS:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "README.md", "exec"), names)
            printed = out.getvalue()
        elif kind == "text":
            assert printed == text


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_python_of_the_docs(file):
    for kind, text in blocks(file):
        if kind == "python" and not HARDWARE.match(text):
            names = {}
            exec(compile(text, file.name, "exec"), names)
            plugins = pluggy.PluginManager("liger")
            plugins.add_hookspecs(hookspecs)
            plugins.register(SimpleNamespace(**names))
            plugins.check_pending()
            for hook in [name for name in names if name.startswith("liger_register_") and "commands" not in name]:
                assert getattr(plugins.hook, hook)()


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
