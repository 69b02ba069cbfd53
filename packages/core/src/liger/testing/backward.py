"""What a kernel's backward must do beside being accurate: each check takes the kernel's declaration and a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from liger.declare import Kernel, load
from liger.testing.behaviour import Tensors, differentiable, equal, fail, gradients, named, prepare
from liger.testing.cases import LAYOUTS, Case, largest, lay_out, option_values, typical
from liger.testing.compare import compare
from liger.testing.contract import flat, random_like, wide
from liger.testing.memory import allocated, poisoned

SUBNORMAL = 16 * torch.finfo(torch.float32).tiny  # below it values lose digits, on the way to a result too


def needs_input_grad(kernel: Kernel, device: str) -> None:
    """Freezing an input gives no gradient for it, changes no other, and allocates less in the backward.

    Less, unless another input has the very same tensor as its gradient.
    """
    base = typical(kernel)
    for case in (base, largest(kernel), *(base.replace(variant=v) for v in base.op.variants)):
        _check_frozen(case, device)


def _check_frozen(case: Case, device: str) -> None:
    tensors, forward = prepare(case, device)
    outputs = forward()
    seeds = random_like(outputs)
    wanted = [i for i, t in enumerate(tensors) if t is not None and t.requires_grad]
    full = dict(zip(wanted, gradients(outputs, tensors, seeds), strict=True))
    pointers = [None if g is None else g.data_ptr() for g in full.values()]
    cost = allocated(lambda: gradients(forward(), tensors, seeds))
    for frozen in wanted if len(wanted) > 1 else ():
        tensors[frozen].requires_grad_(False)  # type: ignore[union-attr]
        left = [full[i] for i in wanted if i != frozen]
        what = f"{case.id}, {case.arguments()[frozen]} frozen"
        with poisoned():
            equal(gradients(forward(), tensors, seeds), left, what)
        less = allocated(lambda: gradients(forward(), tensors, seeds))
        if less >= cost and pointers.count(pointers[wanted.index(frozen)]) < 2:
            fail(f"{what}: the step allocates {less} bytes of {cost}: something is computed for it")
        tensors[frozen].requires_grad_(True)  # type: ignore[union-attr]
    for i in wanted:
        tensors[i].requires_grad_(False)  # type: ignore[union-attr]
    if differentiable(forward()):
        fail(f"{case.id}: an output requires a gradient though no input does")


def one_node(kernel: Kernel, device: str) -> None:
    """An elementwise op or a reduction is one node of autograd, in each variant: one more costs what a launch does."""
    if kernel.profile is None or kernel.profile.tier == "fused":
        return
    base = typical(kernel)
    for case in (base, *(base.replace(variant=v) for v in base.op.variants)):
        _, forward = prepare(case, device)
        outputs = differentiable(forward())  # kept: in torch 2.11 the node of a Function knows nothing without them
        nodes = _nodes([o.grad_fn for o in outputs])
        if len(nodes) > 1:
            fail(f"{case.id}: one node of autograd was expected, found {', '.join(sorted(n.name() for n in nodes))}")


def _nodes(roots: Sequence[Any]) -> set[Any]:
    """All nodes below these, except for those that add to the gradient of a leaf."""
    found: set[Any] = set()
    left = list(roots)
    while left:
        node = left.pop()
        if node is not None and node not in found and "AccumulateGrad" not in node.name():
            found.add(node)
            left += [below for below, _ in node.next_functions]
    return found


def gradient_layouts(kernel: Kernel, device: str) -> None:
    """An output gradient in any layout, also expanded as by ``sum().backward()``, gives what a contiguous one does."""
    tensors, forward = prepare(typical(kernel), device)
    outputs = forward()
    seeds = random_like(outputs)
    ones = [torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape) for o in outputs]
    others = {layout: [lay_out(s, layout) for s in seeds] for layout in LAYOUTS}
    others["a lazy minus sign"] = [torch._neg_view(-s) if s.is_floating_point() else s for s in seeds]
    for layout, given in {"stride 0": ones, **others}.items():
        expected = gradients(forward(), tensors, [s.resolve_neg().contiguous() for s in given])
        equal(gradients(forward(), tensors, given), expected, f"output gradient with {layout}")


def linear_in_dy(kernel: Kernel, device: str) -> None:
    """Gradients are linear in the output gradient: -4 of it gives -4 of them, exactly in float32, and 0 gives 0."""
    tensors, forward = prepare(typical(kernel, "float32"), device)
    seeds = random_like(forward())
    plain = gradients(forward(), tensors, seeds)
    for factor in (-4.0, 0.0):
        found = gradients(forward(), tensors, [factor * s for s in seeds])
        for position, (g, expected) in enumerate(zip(found, plain, strict=True)):
            if g is not None and expected is not None:
                off = ~((g - factor * expected).abs() <= SUBNORMAL)
                if bool((off & expected.isfinite()).any()):
                    fail(f"{factor} times the output gradient does not give {factor} times gradient {position}")


def second_backward(kernel: Kernel, device: str) -> None:
    """A second backward through one graph gives the same gradients: nothing saved was overwritten."""
    tensors, forward = prepare(typical(kernel), device)
    outputs = forward()
    seeds = random_like(outputs)
    # cloned at once: what was handed out may be the very memory that a second backward must not change
    first = [None if g is None else g.clone() for g in gradients(outputs, tensors, seeds, retain_graph=True)]
    equal(gradients(outputs, tensors, seeds), first, "second backward")


def second_derivative(kernel: Kernel, device: str) -> None:
    """``create_graph=True`` is refused by name, or gives the reference's second derivative."""
    case = typical(kernel, "float32")
    tensors, options = case.make(device)

    def twice(fn: Callable[..., Any], inputs: Tensors) -> Tensors:
        outputs = differentiable(flat(fn(*inputs, **options)))
        seeds = [seed.requires_grad_() for seed in random_like(outputs)]  # an op may be linear in all its inputs
        first = gradients(outputs, inputs, seeds, create_graph=True)
        again = differentiable([g for g in first if g is not None])
        leaves = [*inputs, *seeds]
        return gradients(again, leaves, [torch.ones_like(g) for g in again]) if again else [None for _ in leaves]

    try:
        got = twice(case.public(), tensors)
    except RuntimeError as error:
        if f"{kernel.op}: this kernel has no second derivative" not in str(error):
            raise
        return
    reference = load(case.op.reference)
    truth = twice(reference, [wide(t) for t in tensors])
    for mine, theirs, true in zip(got, twice(reference, tensors), truth, strict=True):
        if theirs is None or true is None:
            continue  # the op is linear in it
        if mine is None:
            fail("create_graph=True gives no second derivative and no error: see liger.launch.refuse_second_derivative")
        compare(mine, theirs, true)


def gradcheck(kernel: Kernel, device: str) -> None:
    """The reference's gradients are those of its forward, in float64, with each option and each variant."""
    op = typical(kernel).op
    small = {name: min((v for v in values if v > 1), default=1) for name, values in op.sizes.items()}
    base = Case(kernel=kernel, dtype="float64", sizes=small)
    variants = [base, *(base.replace(variant=v) for v in op.variants)]
    for case in (*variants, *(base.replace(options={name: value}) for name, value in option_values(kernel))):
        tensors, options = case.make("cpu")
        inputs = [t if t is None or not t.is_floating_point() else _of_size_one(t) for t in tensors]

        def outputs(*given: Any, options: Mapping[str, Any] = options) -> tuple[torch.Tensor, ...]:
            return tuple([o for o in flat(load(op.reference)(*given, **options)) if o.requires_grad])

        if not outputs(*inputs):
            return  # the op has no gradients
        if all(bool(o.isfinite().all()) for o in outputs(*inputs)):  # 0 / 0, if every row is ignored, has no slope
            torch.autograd.gradcheck(outputs, inputs, fast_mode=True)  # type: ignore[arg-type]


def _of_size_one(t: torch.Tensor) -> torch.Tensor:
    """As float64 with rows of magnitude 1: finite differences see nothing in rows of 1e3 beside others of 1e-3."""
    size = t.detach().abs().amax(-1, keepdim=True).clamp_min(1e-30) if t.dim() > 1 else 1.0
    return (t.detach().double() / size).requires_grad_(t.requires_grad)


CHECKS = named(
    needs_input_grad,
    one_node,
    gradient_layouts,
    linear_in_dy,
    second_backward,
    second_derivative,
    gradcheck,
)
