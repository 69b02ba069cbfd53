"""Every error Liger raises on purpose. Each message says what was asked, what was found and what to do."""

from __future__ import annotations


class LigerError(Exception):
    """Base of all errors below. Wrong arguments raise plain ValueError or TypeError instead."""


class PluginError(LigerError):
    """A plugin could not be loaded, or declared something invalid."""


class DuplicateName(PluginError):
    """Two distributions declare the same op, kernel, fit or model type; neither is used. Reported, not raised."""


class KernelUnavailable(LigerError):
    """No kernel, or not the kernel asked for by hand, can serve this call."""


class PatchRefused(LigerError):
    """A row was skipped or refused while ``strict=True``, or the target cannot be patched at all."""


class AlreadyPatched(LigerError):
    """The model is patched with other options; unpatch it first."""


class WrongOrder(LigerError):
    """Something wrapped, sharded or compiled the model before Liger patched it."""


class UnpatchConflict(LigerError):
    """A slot no longer holds what Liger put there; nothing was undone."""


class CarrierLeaked(LigerError):
    """The placeholder between head and loss reached a place that needs real logits."""


class ContractViolation(LigerError):
    """A kernel's result lies outside the numerical contract (``liger.testing.assert_contract``)."""
