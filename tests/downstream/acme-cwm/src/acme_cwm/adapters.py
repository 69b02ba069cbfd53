"""How the norm meets the op."""

from liger.swap import forward


@forward
def norm(op, module, hidden_states, *, eps):
    return op(hidden_states, module.weight, eps=getattr(module, eps), cast="llama")
