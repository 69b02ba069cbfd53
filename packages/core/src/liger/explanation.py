"""Answers "which kernel, and why not the others"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from liger import settings
from liger.registry import registry

if TYPE_CHECKING:
    from liger.declare import Kernel, Needs, Profile, Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """One candidate.

    Attributes:
        reasons: empty if it can serve the device asked about, None if no device was given.
        measured: architectures that its launch settings were timed on.
        settings: what that means for the device asked about; empty for a kernel that launches nothing of its own.
    """

    id: str
    owner: str
    rank: int
    needs: str
    reasons: tuple[str, ...] | None
    measured: tuple[str, ...] = ()
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything known about the kernels of one op; ``str()`` is for people, ``to_dict()`` for programs."""

    op: str
    owner: str
    options: dict[str, Any]
    device: str | None
    kernels: tuple[KernelInfo, ...]
    history: tuple[str, ...] = ()
    launch_table: str = ""
    traced_on: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
        lines = [f"{self.op} ({self.owner}): {options or 'no options'}"]
        for k in self.kernels:
            lines.append(f"  {k.id}  rank {k.rank}  {k.owner}  needs: {k.needs}")
            if k.reasons is not None:
                lines.append(f"    on {self.device}: {'; '.join(k.reasons) or 'can serve'}")
            if k.settings:
                lines.append(f"    launch settings {k.settings}")
        if self.traced_on:
            where = "/".join(self.traced_on)
            lines.append(f"  inside torch.compile on {where}: the reference, unless a kernel is chosen with prefer=")
        if self.launch_table:
            lines.append(f"  launch table in force: {self.launch_table}")
        if self.history:
            lines += ["  decisions of this process:", *(f"    {line}" for line in self.history)]
        return "\n".join(lines)


def explain(
    op: str, *, device: str | None = None, dtypes: Sequence[str] = ("bfloat16",), history: bool = False
) -> Explanation:
    """List the kernels of an op, best first, and why each can or cannot serve a call.

    Args:
        op: its name.
        device: ask about this device; without it nothing heavy is imported.
        dtypes: dtypes of the tensor arguments, with ``device``.
        history: add the decisions made in this process so far.

    Raises:
        KernelUnavailable: the op is not installed.
    """
    reg = registry()
    declared = reg.op(op)
    infos = tuple(
        KernelInfo(
            id=k.id,
            owner=reg.owner("kernel", k.id),
            rank=k.rank,
            needs=_needs(k.needs),
            reasons=None if device is None else tuple(_reasons(k, device, dtypes)),
            measured=k.measured,
            settings=_settings(k, device),
        )
        for k in reg.kernels(declared.name)
    )
    return Explanation(
        op=op,
        owner=reg.owner("op", op),
        options={name: option.default for name, option in declared.options.items()},
        device=device,
        kernels=infos,
        history=tuple(_history(op)) if history else (),
        launch_table=launch_table(),
        traced_on=declared.traced_on,
    )


def launch_table() -> str:
    """The user's table of launch settings with the number of its entries, unchecked; "" if there is none."""
    file = settings.user_table()
    if file is None or not file.is_file():
        return ""
    try:
        entries = settings.load_entries(file)
    except (ValueError, OSError) as error:
        return f"none: {error}"
    return f"{file}, {len(entries)} {'entry' if len(entries) == 1 else 'entries'}"


def profile(op: str) -> dict[str, Any]:
    """How an op is computed and measured: its options, sweeps and peers, and the profile of each kernel; plain data.

    Raises:
        KernelUnavailable: the op is not installed.
    """
    reg = registry()
    declared = reg.op(op)
    return {
        "op": declared.name,
        "reference": declared.reference,
        "options": {name: {"default": o.default, "tested": list(o.values)} for name, o in declared.options.items()},
        "mixed_dtypes": list(declared.mixed),
        "traced_on": list(declared.traced_on),
        "benchmark": {
            "sweeps": [_fields(sweep) for sweep in declared.sweeps],
            "providers": ["ours", "eager", "torch.compile", *declared.peers],
        },
        "kernels": {k.id: _profile(k) for k in reg.kernels(declared.name)},
    }


def _profile(kernel: Kernel) -> dict[str, Any]:
    out: dict[str, Any] = {"rank": kernel.rank, "fn": kernel.fn, "needs": _needs(kernel.needs)}
    if about := _settings(kernel, None):
        out |= {"measured": list(kernel.measured), "launch_settings": about}
    if kernel.profile is None:
        return out
    return out | _fields(kernel.profile)


def _fields(declaration: Profile | Sweep) -> dict[str, Any]:
    """As plain data; ``asdict`` would copy, which a read-only mapping does not allow."""
    plain: dict[type, Any] = {tuple: list, dict: dict, MappingProxyType: dict}
    values = ((f.name, getattr(declaration, f.name)) for f in fields(declaration))
    return {name: plain.get(type(value), lambda v: v)(value) for name, value in values}


def _settings(kernel: Kernel, device: str | None) -> str:
    """On what the launch settings were measured, for a device whether there; "" if the kernel has none."""
    if not (kernel.needs.interpreter or kernel.measured):
        return ""
    name = _architecture(device) if device else None
    if name is not None and name not in kernel.measured:
        return f"not measured on {name}: by the rule"
    return f"measured on {name or ', '.join(kernel.measured)}" if kernel.measured else "not measured: by the rule"


def _architecture(device: str) -> str | None:
    """``sm90``; None where no GPU can be asked."""
    import torch

    from liger.launch import gpu

    where = torch.device(device)
    if where.type in ("cpu", "meta") or (where.type == "cuda" and not torch.cuda.is_available()):
        return None
    return gpu(where).name


def _reasons(kernel: Kernel, device: str, dtypes: Sequence[str]) -> list[str]:
    import torch

    from liger import dispatch

    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        return ["this machine has no CUDA device"]
    call = dispatch.make_call(kernel.op, where, [getattr(torch, d) for d in dtypes])
    return dispatch.reasons(kernel, call)


def _history(op: str) -> list[str]:
    import sys

    dispatch = sys.modules.get("liger.dispatch")
    out = []
    for d in dispatch.LOG.decisions if dispatch else ():
        if d.op == op:
            why = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in d.rejected)
            asked = (f", prefer={d.prefer!r}" if d.prefer else "") + ", compiled" * d.compiled
            out.append(f"{d.device} ({', '.join(d.dtypes)}{asked}) -> {d.chosen}" + (f"  [not {why}]" if why else ""))
    return out


def _needs(needs: Needs) -> str:
    parts = [f"{'/'.join(needs.devices) or 'any device'}", f"{'/'.join(needs.dtypes) or 'any dtype'}"]
    if needs.min_capability:
        parts.append(f"capability >= {'.'.join(map(str, needs.min_capability))}")
    parts += [f"{name} <= {limit}" for name, limit in needs.max_size.items()]
    parts += [f"{name} in {values}" for name, values in needs.options.items()]
    return ", ".join(parts)
