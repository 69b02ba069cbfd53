"""What is installed, what was found, what is wrong."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from packaging.version import InvalidVersion, Version

from liger import settings
from liger.explanation import launch_table
from liger.registry import disabled_kernels, registry

FLOORS = {"torch": "2.11", "triton": "3.6", "transformers": "5.17"}
"""The oldest versions the suite has run on."""


@dataclass(slots=True)
class Diagnosis:
    """``problems`` is empty on a healthy installation; each entry says what to do."""

    versions: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    plugins: list[dict[str, Any]] = field(default_factory=list)
    launch_table: str = "none"
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at versions, devices, plugins and this process's state."""
    found = Diagnosis()
    found.versions = _versions()
    found.plugins = [asdict(i) for i in registry().plugins.infos]
    found.problems += [str(i) for i in registry().plugins.failed]
    found.problems += registry().problems
    found.problems += _version_problems(found.versions)
    found.problems += _environment_problems()
    if "torch" in found.versions:
        found.devices, problems = _devices(found.versions)
        found.problems += problems
    found.launch_table, problems = _launch_table("triton" in found.versions)
    found.problems += problems
    from liger.swap import changed_globals

    found.problems += changed_globals()
    return found


def _versions() -> dict[str, str]:
    out = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    names = {d.name for d in metadata.distributions() if d.name and d.name.startswith("liger-")}
    for name in (*sorted(names), *FLOORS, "accelerate", "peft", "trl"):
        try:
            out[name] = metadata.version(name) or "unknown"  # a half-removed distribution has none
        except (metadata.PackageNotFoundError, KeyError):
            continue
    return out


def _version_problems(versions: dict[str, str]) -> list[str]:
    out = [
        f"{name} {versions[name]} is older than {floor}, the oldest that is tested: pip install '{name}>={floor}'"
        for name, floor in FLOORS.items()
        if name in versions and _older(versions[name], floor)
    ]
    ours = {_own(n, v) for n, v in versions.items() if n.startswith("liger-") and n != "liger-kernel"}
    if len(ours) > 1:
        out.append(
            f"liger packages of different versions are installed ({', '.join(sorted(ours))}): upgrade all of them"
        )
    return out


def _own(name: str, version: str) -> str:
    """Liger's version: that of liger-compat begins with the three numbers of the interface it answers."""
    return ".".join(version.split(".")[3:]) if name == "liger-compat" else version


def _older(version: str, floor: str) -> bool:
    try:
        return Version(version) < Version(floor)
    except InvalidVersion:  # somebody's own build
        return False


def _environment_problems() -> list[str]:
    reg = registry()
    known = {k.id for op in reg.ops for k in reg.kernels(op)} | {k.name for op in reg.ops for k in reg.kernels(op)}
    out = [f"LIGER_DISABLE_KERNELS names {n!r}, which no kernel has" for n in sorted(disabled_kernels() - known)]
    out += [f"LIGER_DISABLE_PLUGINS names {n!r}, which no plugin has" for n in reg.plugins.unknown_disabled]
    if os.environ.get("TRITON_INTERPRET") == "1":
        out.append("TRITON_INTERPRET=1: Triton kernels are interpreted, which is for tests only; unset it")
    return out


def _launch_table(checked: bool) -> tuple[str, list[str]]:
    """The user's table of launch settings, and what is wrong with it; without triton no entry can be looked up."""
    file = settings.user_table()
    if file is None:
        return f"none: {settings.VARIABLE} is empty", []
    problems = list(settings.read(file).problems) if checked else []
    return launch_table() or f"{file} (not there; `liger tune` writes it)", problems


def _devices(versions: dict[str, str]) -> tuple[list[str], list[str]]:
    import torch

    devices, problems = ["cpu"], []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            devices.append(f"cuda:{i} {p.name}, capability {p.major}.{p.minor}, {p.total_memory / 2**30:.0f} GiB")
        if "triton" not in versions:
            problems.append("there is a CUDA device but no triton, so plain torch kernels serve it: pip install triton")
    return devices, problems
