"""The peer and liger-compat install files of the same names: whichever came last has overwritten the other's."""

from __future__ import annotations

from importlib import metadata

PEERS = ("liger-kernel", "liger-kernel-nightly")


def peers() -> list[str]:
    """The installed distributions of the peer, with their versions."""
    found = []
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def refuse() -> None:
    """Fail if the peer is installed too.

    Raises:
        ImportError: it is.
    """
    if found := peers():
        raise ImportError(
            f"{' and '.join(found)} and liger-compat are both installed, and both are imported as liger_kernel. Keep "
            "one: `pip uninstall -y liger-kernel liger-kernel-nightly liger-compat`, then install it again"
        )
