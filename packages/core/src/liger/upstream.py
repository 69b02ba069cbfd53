"""What the installed transformers says about a model type: by its source text, and which fits suit a small model.

It only starts a declaration: what is not recognised is left out, and the checks of ``liger.testing`` decide.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from liger.declare import load

SMALL: dict[str, object] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers")
SOFTCAP = "config.final_logit_softcapping"


@dataclass(slots=True)
class Upstream:
    """A causal LM of transformers.

    Attributes:
        module: the module that defines its classes.
        config: name of its config class.
        fits: class name -> call of ``liger_hf.fits``, as source text.
        head: the same for the causal LM itself.
        unknown: classes that a fit may suit, but none does.
        settings: arguments that make a small config.
    """

    module: str
    config: str
    head: str
    fits: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)


class Source:
    """A parsed file, its top-level classes and functions by name."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        body = ast.parse(self.text).body
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}

    def of(self, cls: str) -> str:
        """Source text of a class, white space squeezed."""
        return " ".join((ast.get_source_segment(self.text, self.classes[cls]) or "").split())


def find(model_type: str) -> Upstream:
    """Describe the causal LM of a model type.

    Raises:
        ValueError: transformers is not installed, does not know the model type, or it has no causal LM of its own.
    """
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ValueError("a model package needs transformers to be installed: pip install transformers")
    models = Path(spec.origin).parent / "models"
    for file in sorted(models.glob("*/configuration_*.py")):
        if f'model_type = "{model_type}"' in file.read_text(encoding="utf-8"):
            config = Source(file)
            name = next(n for n in config.classes if f'model_type = "{model_type}"' in config.of(n))
            modeling = file.with_name(file.name.replace("configuration_", "modeling_"))
            if modeling.exists():
                module = f"transformers.models.{file.parent.name}.{modeling.stem}"
                return _describe(model_type, module, name, fields(config, name), Source(modeling))
    raise ValueError(f"the installed transformers knows no model_type {model_type!r} with a modeling file of its own")


def fields(config: Source, name: str) -> dict[str, object]:
    """Annotated attributes of a config class with their defaults; None where a default is no literal."""
    found: dict[str, object] = {}
    for node in config.classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.value.value if isinstance(node.value, ast.Constant) else None
    return found


def _describe(model_type: str, module: str, config: str, known: dict[str, object], source: Source) -> Upstream:
    heads = [name for name in source.classes if name.endswith("ForCausalLM")]
    if len(heads) != 1:
        raise ValueError(
            f"{module} has {len(heads)} classes ...ForCausalLM, expected one: {', '.join(heads) or 'none'}"
        )
    if lacking := [name for name in NEEDED if name not in known]:
        raise ValueError(f"{config} has no {', '.join(lacking)}, so no small config can be made for {model_type!r}")
    softcap = f'softcap="{SOFTCAP}"' if SOFTCAP in source.of(heads[0]) else ""
    found = Upstream(module=module, config=config, head=f"fits.causal_lm_head({softcap})")
    found.settings = {name: value for name, value in SMALL.items() if name in known}
    if known.get("pad_token_id") is not None:
        found.settings["pad_token_id"] = 0  # upstream's lies outside the small vocabulary
    found.fits, found.unknown = _recogniser()(module, heads[0], config, found.settings)
    return found


def _recogniser() -> Any:
    try:
        return load("liger_hf.recognise:recognise")
    except ImportError as error:
        raise ValueError(f"a model package needs liger-hf: pip install liger-hf ({error})") from error
