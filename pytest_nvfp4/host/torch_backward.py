"""A backward pass in Python, for device tensors where torch's engine asks the driver for its streams.

The nodes of a graph are torch's own, and are called in the order in which its engine calls them. What the engine does
around each call is done here: gradients of one output are summed, made to have its shape and dtype, given to the hooks
of its tensor, and stored for ``retain_grad`` or for those who asked for them; the hooks of the node are called around
it.

Source: torch's ``csrc/autograd/engine.cpp``; the observable rules are in its documentation, "Autograd mechanics".
"""

from __future__ import annotations

import contextlib
import heapq
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.tensor import HostCudaTensor

_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
_ADD_HOOK: Final = "_register_hook"
_UNMATERIALIZED: Final = "_nvfp4_keeps_none"
"""Attribute of a context of a custom function that gets None for gradients that do not exist."""
_UNDIFFERENTIATED: Final = "_nvfp4_undifferentiated"
"""Attribute of a context of a custom function: shape, dtype and device of outputs without a gradient, by number."""


@dataclass(slots=True)
class _Watch:
    """A use of the gradient of a node's output: a hook of a tensor, or a tensor that keeps its gradient.

    The node is held until a backward pass without ``retain_graph`` has called it.
    """

    node: Any
    output: int
    hook: Callable[[Any], Any] | None = None
    handle: Any = None
    keeper: weakref.ref[Any] | None = None

    @property
    def lives(self) -> bool:
        """Whether the hook was not removed, or the tensor is still there."""
        if self.keeper is not None:
            return self.keeper() is not None
        hooks = self.handle.hooks_dict_ref()
        return hooks is not None and self.handle.id in hooks


class BackwardPasses:
    """Runs backward passes, with the hooks of tensors and the tensors that keep their gradients."""

    def __init__(self) -> None:
        self._watches: list[_Watch] = []

    def register_hook(self, tensor: Any, hook: Callable[[Any], Any]) -> Any:
        """Replace ``Tensor.register_hook`` of a device tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            handle = torch.Tensor.register_hook(tensor, hook)  # type: ignore[no-untyped-call]
            node, output = _edge(tensor)
        self._watches.append(_Watch(node, output, hook, handle))
        return handle

    def retain_grad(self, tensor: Any) -> None:
        """Replace ``Tensor.retain_grad`` of a device tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.retain_grad(tensor)
            if tensor.is_leaf:
                return
            node, output = _edge(tensor)
        self._watches.append(_Watch(node, output, keeper=weakref.ref(tensor)))

    def run(  # noqa: PLR0917 - torch gives them by position
        self,
        outputs: Sequence[Any],
        grads: Sequence[Any],
        keep_graph: bool,
        create_graph: bool,
        inputs: Sequence[Any] = (),
        allow_unreachable: bool = True,
        accumulate_grad: bool = False,
    ) -> tuple[Any, ...]:
        """Do what the engine's ``run_backward`` does, whose arguments these are.

        Raises:
            RuntimeError: What the engine raises for tensors that need no gradient, and for inputs that are not used.
            HostSideError: It would run for several gradients at a time.
        """
        functorch = torch._C._functorch
        transform = functorch.peek_interpreter_stack()
        if transform is not None and transform.key() == functorch.TransformType.Vmap:
            raise HostSideError(
                "a backward pass inside torch.vmap (torch.func.jacrev, torch.func.hessian) has no stand-in without a "
                "GPU: use torch.func.jacfwd or torch.autograd.functional"
            )
        roots = [_edge(output) for output in outputs]
        for at, (node, _) in enumerate(roots):
            if node is None:
                raise RuntimeError(f"element {at} of tensors does not require grad and does not have a grad_fn")
        wanted = [_edge(tensor) for tensor in inputs]
        self._watches = [watch for watch in self._watches if watch.lives]
        backward = _Pass(_Graph.of([node for node, _ in roots]), self._watches, wanted, accumulate=accumulate_grad)
        # `Tensor.backward` is called where torch's modes are off.
        with torch._C._EnableTorchFunction(), HostCudaTensor.modes(), torch.set_grad_enabled(create_graph):
            for (node, output), grad in zip(roots, grads, strict=True):
                backward.add(node, output, grad)
            backward.run()
        if not keep_graph:
            done = backward.graph.numbers
            self._watches = [watch for watch in self._watches if id(watch.node) not in done or _is_leaf(watch.node)]
        if accumulate_grad:
            return ()
        found = tuple(backward.captured.get((id(node), output)) for node, output in wanted)
        unused = next((index for index, grad in enumerate(found) if grad is None), None)
        if not allow_unreachable and unused is not None:
            raise RuntimeError(
                f"The differentiated Tensor at index {unused} appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior."
            )
        return found


@dataclass(slots=True)
class _Graph:
    """The nodes that can be reached from the outputs of a backward pass.

    Attributes:
        nodes: The nodes, in no particular order. They are held because the rest names them by identity.
        numbers: By identity of a node, its place among them.
        left: By identity of a node, the number of edges to it from nodes that were not called yet.
    """

    nodes: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Sequence[Any]) -> _Graph:
        graph, waiting = cls(), list(roots)
        while waiting:
            node = waiting.pop()
            if id(node) in graph.numbers:
                continue
            graph.numbers[id(node)] = len(graph.nodes)
            graph.nodes.append(node)
            for following, _ in _edges(node):
                graph.left[id(following)] = graph.left.get(id(following), 0) + 1
                waiting.append(following)
        return graph

    def leading_to(self, targets: Sequence[Any]) -> set[int]:
        """Return the identities of the nodes from which one of some nodes can be reached."""
        before: dict[int, list[int]] = {}
        for node in self.nodes:
            for following, _ in _edges(node):
                before.setdefault(id(following), []).append(id(node))
        found: set[int] = set()
        waiting = [id(node) for node in targets if id(node) in self.numbers]
        while waiting:
            if (node := waiting.pop()) not in found:
                found.add(node)
                waiting += before.get(node, ())
        return found


class _Pass:
    """One backward pass.

    Args:
        graph: The graph of the outputs.
        watches: The hooks of tensors, and the tensors that keep their gradients.
        wanted: The edges of the inputs for which gradients are asked; empty for all leaves.
        accumulate: Whether they are added to ``grad``, not returned.
    """

    def __init__(
        self, graph: _Graph, watches: Sequence[_Watch], wanted: Sequence[tuple[Any, int]], *, accumulate: bool
    ) -> None:
        self.graph = graph
        self.captured: dict[tuple[int, int], Any] = {}
        self._watches: dict[int, list[_Watch]] = {}
        for watch in watches:
            self._watches.setdefault(id(watch.node), []).append(watch)
        self._grads: dict[int, dict[int, Any]] = {}
        self._wanted = {(id(node), output) for node, output in wanted}
        self._needed = graph.leading_to([node for node, _ in wanted]) if wanted else None
        self._accumulate = accumulate

    def add(self, node: Any, output: int, grad: Any, *, source: str = "") -> None:
        """Add a gradient to those of an output of a node; ``source`` starts the error. Raises RuntimeError."""
        if grad is None:
            return
        kept = self._grads.setdefault(id(node), {})
        grad = _fitting(grad, node._input_metadata[output], source=source)
        kept[output] = grad if output not in kept else kept[output] + grad

    def run(self) -> None:
        """Call all nodes, those that were made last first, and what accumulates gradients before all others."""
        ready = [(_priority(node), self.graph.numbers[id(node)]) for node in self.graph.nodes if not self._left(node)]
        heapq.heapify(ready)
        while ready:
            node = self.graph.nodes[heapq.heappop(ready)[1]]
            grads = self._called(node)
            for at, ((following, output), grad) in enumerate(zip(node.next_functions, grads, strict=True)):
                if following is None:
                    continue
                self.add(
                    following, output, grad, source=f"Function {node.name()} returned an invalid gradient at index {at}"
                )
                self.graph.left[id(following)] -= 1
                if not self._left(following):
                    heapq.heappush(ready, (_priority(following), self.graph.numbers[id(following)]))

    def _left(self, node: Any) -> int:
        return self.graph.left.get(id(node), 0)

    def _called(self, node: Any) -> Sequence[Any]:
        """Return the gradients of what a node leads to; None for those that there are none of."""
        nothing = [None] * len(node.next_functions)
        given = self._grads.pop(id(node), {})
        custom = isinstance(node, BackwardCFunction)
        if not given and not custom:
            return nothing
        self._watched(node, given)
        for output, grad in given.items():
            if (id(node), output) in self._wanted:
                self.captured[id(node), output] = grad
        if _is_leaf(node):
            called = self._accumulate and (self._needed is None or id(node) in self._needed)
        else:
            called = self._needed is None or any(id(following) in self._needed for following, _ in _edges(node))
        if not called:
            return nothing
        grads: Sequence[Any] = [given.get(output) for output in range(len(node._input_metadata))]
        for hook in _hooks(node.register_prehook):
            grads = _replaced(grads, hook, tuple(grads))
        returned: Sequence[Any] = _of_custom(node, list(grads)) if custom else _tuple(node(*grads))
        for hook in _hooks(node.register_hook):
            returned = _replaced(returned, hook, tuple(returned), tuple(grads))
        return returned

    def _watched(self, node: Any, given: dict[int, Any]) -> None:
        """Call the hooks of tensors, which may change ``given``, then store the gradients that tensors keep."""
        watches = self._watches.get(id(node), ())
        for watch in watches:
            if watch.hook is not None and watch.output in given:
                changed = watch.hook(given[watch.output])
                if changed is not None:
                    given[watch.output] = changed
        for watch in watches:
            if watch.keeper is not None and watch.output in given and (tensor := watch.keeper()) is not None:
                grad = given[watch.output]
                tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def set_materialize_grads(original: Callable[..., None]) -> Callable[..., None]:
    """Return ``FunctionCtx.set_materialize_grads``, which stores the value also where it can be read."""

    def set_it(context: Any, value: bool) -> None:
        original(context, value)
        setattr(context, _UNMATERIALIZED, not value)

    return set_it


def applying(original: Any) -> Any:
    """Return ``Function.apply``, which also stores what the outputs without a gradient are like."""

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        outputs = original.__get__(None, cls)(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            tensors = {at: out for at, out in enumerate(_tuple(outputs)) if isinstance(out, torch.Tensor)}
            node = next((out.grad_fn for out in tensors.values() if out.grad_fn is not None), None)
            if isinstance(node, BackwardCFunction):
                without = {at: out for at, out in tensors.items() if out.grad_fn is None}
                described = {at: (tuple(out.shape), out.dtype, out.device) for at, out in without.items()}
                setattr(node, _UNDIFFERENTIATED, described)
        return outputs

    return classmethod(apply)


class _FoundError(Exception):
    """Ends the registration of a hook that is none."""


def _hooks(register: Callable[[Any], object]) -> list[Callable[..., Any]]:
    """Return the hooks of a node, which torch gives to the function in Python that adds another one.

    Args:
        register: ``register_hook`` or ``register_prehook`` of the node.
    """
    found: list[Callable[..., Any]] = []

    def add(hooks: dict[int, Callable[..., Any]] | None, _hook: object) -> None:
        found.extend((hooks or {}).values())
        raise _FoundError

    setattr(torch.autograd.Function, _ADD_HOOK, staticmethod(add))
    try:
        with contextlib.suppress(_FoundError):
            register(None)
    finally:
        delattr(torch.autograd.Function, _ADD_HOOK)
    return found


def _replaced(grads: Sequence[Any], hook: Callable[..., Any], *given: tuple[Any, ...]) -> Sequence[Any]:
    """Return what a hook of a node makes of gradients. Raises RuntimeError for another number of them."""
    changed = hook(*given)
    if changed is None:
        return grads
    if len(made := _tuple(changed)) != len(grads):
        name = getattr(hook, "__name__", "<unknown>")
        raise RuntimeError(
            f"hook '{name}' has returned an incorrect number of values (got {len(made)}, but expected {len(grads)})"
        )
    return made


def _of_custom(node: Any, grads: list[Any]) -> list[Any]:
    """Return what the backward function of a custom function returns, for what the node leads to."""
    if not getattr(node, _UNMATERIALIZED, False):
        likes = {
            at: (tuple(like.shape), like.dtype, like.device)
            for at, like in enumerate(node._input_metadata)
            if not _is_default(like)
        } | getattr(node, _UNDIFFERENTIATED, {})
        for at, (shape, dtype, device) in likes.items():
            if grads[at] is None:
                grads[at] = torch.zeros(shape, dtype=dtype, device=device)
    returned = _tuple(node.apply(*grads))
    needed = node.needs_input_grad
    if len(returned) < len(needed) or any(grad is not None for grad in returned[len(needed) :]):
        raise RuntimeError(
            f"function {node.name()} returned an incorrect number of gradients (expected {len(needed)}, got "
            f"{len(returned)})"
        )
    # An edge leads on for each input that needs a gradient; of the others some are no tensors, which have no edge.
    used = iter([grad for grad, needs in zip(returned, needed, strict=False) if needs])
    return [None if following is None else next(used, None) for following, _ in node.next_functions]


def _is_default(like: Any) -> bool:
    """Return whether a description is that of an output without one: None, a number, or one without a gradient."""
    return like.device.type == "cpu" and not tuple(like.shape)


def _tuple(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _fitting(grad: Any, like: Any, *, source: str) -> Any:
    """Return a gradient with the shape and dtype of an output. Raises RuntimeError if its shape cannot be reduced."""
    shape, own = tuple(like.shape), tuple(grad.shape)
    if own != shape:
        first = len(own) - len(shape)
        if first < 0 or any(size not in (1, has) for size, has in zip(shape, own[first:], strict=True)):
            raise RuntimeError(f"{source} - got {list(own)} but expected shape compatible with {list(shape)}")
        grad = (grad.sum(tuple(range(first))) if first else grad).sum_to_size(shape)
    return grad if grad.dtype == like.dtype or grad.is_complex() else grad.to(like.dtype)


def _edge(tensor: Any) -> tuple[Any, int]:
    """Return the node of a tensor, None if it needs no gradient, and the number of the output."""
    if not isinstance(tensor, torch.Tensor):  # a GradientEdge
        return tensor.node, tensor.output_nr
    if not tensor.requires_grad:
        return None, 0
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _edges(node: Any) -> Iterator[tuple[Any, int]]:
    return ((following, output) for following, output in node.next_functions if following is not None)


def _is_leaf(node: Any) -> bool:
    return bool(node.name() == _ACCUMULATE)


def _priority(node: Any) -> int:
    return -(1 << 63) if _is_leaf(node) else -node._sequence_nr()


def is_on_device(outputs: Any) -> bool:
    """Return whether one of the outputs of a backward pass is a device tensor."""
    listed = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    return any(isinstance(output, torch.Tensor) and output.is_cuda for output in listed)
