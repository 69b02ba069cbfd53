"""Hooks of mkdocs: pages and pictures that are generated when the site is built. Imports no torch.

The reference of ops comes from the registry and the docstrings, the plots from what `liger bench` wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from liger.declare import Kernel, Op
from liger.registry import registry

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def on_files(files: Any, config: Any) -> Any:
    """Add the page of ops, and the plots and tables of each GPU."""
    from mkdocs.structure.files import File, InclusionLevel

    files.append(File.generated(config, "ops.md", content=ops_page()))
    for gpu in gpus():  # reached from the page on performance
        page = File.generated(config, f"results/{gpu}.md", content=(RESULTS / gpu / "table.md").read_text("utf-8"))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    for picture in sorted(RESULTS.glob("*/*.png")):
        name = f"results/{picture.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show what was measured below the page on performance."""
    return markdown + results() if page.file.src_uri == "performance.md" else markdown


def gpus() -> list[str]:
    """Names of the folders of results."""
    return sorted(path.parent.name for path in RESULTS.glob("*/table.md"))


def results() -> str:
    """The table and every plot of each GPU."""
    out = []
    for gpu in gpus():
        out.append(f"\n\n## Results: {gpu}\n\nEvery row: [table](results/{gpu}.md).\n")
        for picture in sorted((RESULTS / gpu).glob("*.png")):
            out.append(f"![{picture.stem}](results/{gpu}/{picture.name}){{ loading=lazy }}\n")
    return "\n".join(out)


def ops_page() -> str:
    """Every installed op, by package: options, kernels, and what its docstring says."""
    reg = registry()
    if not reg.ops or reg.problems or reg.plugins.failed:
        raise SystemExit(f"the packages are not installed: {[*reg.problems, *map(str, reg.plugins.failed)]}")
    packages = sorted({reg.owner("op", name).partition(" ")[0] for name in reg.ops})
    out = [
        "# Ops",
        "",
        "Generated from the registry and the docstrings. `liger.ops.NAME` is each op's function; `liger.explain(NAME)` "
        "says which kernel serves where.",
    ]
    for package in packages:
        out += ["", f"## {package}"]
        for op in sorted(reg.ops.values(), key=lambda op: op.name):
            if reg.owner("op", op.name).partition(" ")[0] == package:
                out += ["", *one_op(op)]
    return "\n".join([*out, ""])


def one_op(op: Op) -> Iterator[str]:
    """The signature and docstring by mkdocstrings, then tables of options and kernels."""
    yield f"::: {op.public.replace(':', '.')}"
    yield ""
    if op.options:
        yield from ("| option | default | tested with |", "|---|---|---|")
        for name, option in op.options.items():
            values = ", ".join(f"`{value!r}`" for value in option.values) or "by hand"
            yield f"| `{name}` | `{option.default!r}` | {values} |"
        yield ""
    yield from ("| kernel | rank | serves | measured on |", "|---|---|---|---|")
    for kernel in registry().kernels(op.name):
        yield f"| `{kernel.id}` | {kernel.rank} | {serves(kernel)} | {', '.join(kernel.measured)} |"


def serves(kernel: Kernel) -> str:
    """What a kernel can serve, in words."""
    needs = kernel.needs
    limits = [f"{name} up to {limit}" for name, limit in needs.max_size.items()]
    return "; ".join([", ".join(needs.devices) or "any device", ", ".join(needs.dtypes) or "any dtype", *limits])
