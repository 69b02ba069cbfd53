"""Registers rms_norm for the device type "acme"."""

import liger
from liger import Kernel, Needs

LIGER_PLUGIN_API = 1


@liger.hookimpl
def liger_register_ops():
    return [
        Kernel(
            op="rms_norm",
            name="acme",
            fn="acme_kernels.kernels:rms_norm",
            rank=20,
            needs=Needs(devices=("acme",), dtypes=("float32",), max_size={"H": 64}),
        )
    ]
