"""The ``liger`` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from liger.errors import LigerError
from liger.registry import registry
from liger.scaffold import app as new

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Fused kernels for Hugging Face models.")
app.add_typer(new, name="new")
console = Console()
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from liger import __version__

        typer.echo(f"liger {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Fused kernels for Hugging Face models."""


@app.command()
def plugins(as_json: Json = False) -> None:
    """List the plugins, what each implements, and why a broken one was not loaded."""
    infos = registry().plugins.infos
    if as_json:
        import dataclasses

        typer.echo(json.dumps([dataclasses.asdict(i) for i in infos], indent=2))
        return
    table = Table("plugin", "distribution", "implements / problem", box=None, pad_edge=False)
    for info in infos:
        state = "disabled by LIGER_DISABLE_PLUGINS" if info.disabled else info.error or ", ".join(info.hooks)
        table.add_row(*map(Text, (info.name, info.owner, state)))  # square brackets in a message are no markup
    console.print(table)
    for problem in registry().problems:
        console.print(f"problem: {problem}", markup=False)
    raise typer.Exit(1 if registry().plugins.failed or registry().problems else 0)


@app.command()
def explain(
    op: str,
    device: Annotated[str | None, typer.Option(help="Ask about this device, e.g. cuda.")] = None,
    dtype: Annotated[str, typer.Option(help="dtype of the tensors, with --device.")] = "bfloat16",
    profile: Annotated[
        bool, typer.Option("--profile", help="Print how each kernel works and is measured, as YAML.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the kernels of an op and why each can or cannot serve."""
    from liger.explanation import explain as ask
    from liger.explanation import profile as describe

    if profile:
        if device or dtype != "bfloat16":
            raise ValueError("--profile is what a kernel declares: leave --device and --dtype out")
        import yaml

        described = describe(op)
        if as_json:
            typer.echo(json.dumps(described, indent=2))
        else:
            typer.echo(yaml.safe_dump(described, sort_keys=False, width=120, allow_unicode=True))
        return
    found = ask(op, device=device, dtypes=(dtype,))
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show versions, devices, plugins and problems; the exit code is 1 if there are problems."""
    from liger.doctor import diagnose

    found = diagnose()
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        for title, rows in (("versions", found.versions.items()), ("devices", enumerate(found.devices))):
            console.print(title, style="bold")
            for name, value in rows:
                console.print(f"  {name}: {value}", markup=False, highlight=False)
        console.print("launch table", style="bold")
        console.print(f"  {found.launch_table}", markup=False, highlight=False)
        console.print("plugins", style="bold")
        for info in registry().plugins.infos:
            console.print(f"  {info}", markup=False, highlight=False)
        console.print("problems", style="bold")
        for problem in found.problems or ["none"]:
            console.print(f"  {problem}", markup=False, highlight=False)
    raise typer.Exit(1 if found.problems else 0)


@app.command()
def demo(
    model: Annotated[
        str | None, typer.Option(help="smollm2 or tiny-<model type>; by default the best available.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer steps and tokens: under 2 minutes on 2 CPU cores.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for plots and JSON.")] = Path("build/demo"),
    device: Annotated[str | None, typer.Option(help="cuda or cpu; by default cuda if there is one.")] = None,
) -> None:
    """Fine-tune a model with and without Liger and compare losses and memory."""
    from liger.demo import main as run

    raise typer.Exit(run(model=model, quick=quick, out=out, device=device))


@app.command()
def tune(
    ops: Annotated[list[str], typer.Argument(metavar="OP...", help="Ops whose Triton kernels are tuned.")],
    sizes: Annotated[str, typer.Option(help="Sizes as R=16384,H=5120; by default those of the benchmarks.")] = "",
    dtype: Annotated[str, typer.Option(help="dtype of the tensors.")] = "bfloat16",
    seconds: Annotated[float, typer.Option(help="For everything; what comes later is left out.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="The table; by default the user's, which is then used.")] = None,
) -> None:
    """Time other launch settings of ops on this GPU; what is over 2 % faster goes into a table, used from now on.

    Nothing is ever timed without this command. New settings are held to the op's contract before they are timed.
    """
    from liger.tune.main import main as run

    run(ops, sizes, dtype, seconds, out, console)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(context: typer.Context) -> None:
    """Verify and time kernels beside their peers on a GPU; `liger bench --help`, `liger bench compare --help`."""
    from liger.bench.main import main as run

    raise typer.Exit(run(context.args))


def build() -> typer.Typer:
    """The app with the plugins' commands, and ``plan`` in any case."""
    registry().plugins.call("liger_register_commands", app=app)
    if not any((c.name or getattr(c.callback, "__name__", "")) == "plan" for c in app.registered_commands):
        app.command("plan")(_plan_without_models)
    return app


def _plan_without_models(target: str) -> None:
    """Show what would be patched; needs a model package."""
    from liger.candidates import unknown_reason

    console.print(unknown_reason(target, registry()), markup=False)
    console.print("reading a model directory or hub id needs liger-hf: pip install liger-hf", markup=False)
    raise typer.Exit(1)


def main() -> None:
    """Entry point of the console script: errors of ours are shown without a traceback."""
    try:
        build()()
    except (LigerError, ValueError, TypeError) as error:
        Console(stderr=True).print(f"error: {error}", markup=False)
        raise SystemExit(2) from None
