"""A backward pass on device tensors gives the gradients, and the errors, of torch's engine on the CPU."""

from pathlib import Path
from typing import Any

import pytest

from tests.host.redirect_worker import TORCH_PRELUDE, run_script

NAMES = (
    "layers",
    "trained",
    "functional",
    "parts",
    "twice",
    "again",
    "ordered",
    "custom",
    "nothing",
    "mixed",
    "missing",
    "hooks",
    "around",
    "marked",
    "asked",
    "chosen",
    "second",
    "changed",
    "kinds",
    "several",
    "refused",
)

GRAPHS = '''
from torch.autograd import Function, grad

def new(*shape, device, **how):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7 + len(shape))).to(device).requires_grad_()

class Scaled(Function):
    """Inputs that are no tensors or need no gradient, and two outputs; a gradient of a larger shape."""
    @staticmethod
    def forward(ctx, number, a, other, b):
        ctx.save_for_backward(a, b)
        ctx.number = number
        return a * b * number, a + other
    @staticmethod
    def backward(ctx, first, second):
        a, b = ctx.saved_tensors
        return None, first * b * ctx.number + second, None, (first * a * ctx.number).expand(2, *a.shape) / 2

class Seen(Function):
    """What a function gets for an output that nothing uses, with a context that keeps None, and without."""
    got = []
    @staticmethod
    def forward(ctx, a, keeps):
        if keeps:
            ctx.set_materialize_grads(False)
        return a * 1, a * 2
    @staticmethod
    def backward(ctx, first, second):
        Seen.got.append(None if first is None else first.tolist())
        return second * 2, None

class Mixed(Function):
    """Outputs that are no tensors."""
    got = []
    @staticmethod
    def forward(ctx, a):
        return a * 2, None, 5, a * 3
    @staticmethod
    def backward(ctx, *grads):
        Mixed.got.append([None if grad is None else grad.tolist() for grad in grads])
        return grads[0] * 2

class Marked(Function):
    """Outputs without a gradient, with a context that keeps None, and without."""
    got = []
    @staticmethod
    def forward(ctx, a, keeps):
        ctx.set_materialize_grads(not keeps)
        largest, at = a.max(1)
        unused = a[:1] + 1
        ctx.mark_non_differentiable(unused)
        return at, largest, unused
    @staticmethod
    def backward(ctx, at, largest, unused):
        Marked.got.append([None if g is None else (str(g.dtype), g.tolist()) for g in (at, largest, unused)])
        return largest[:, None].expand(-1, 3), None

class Cut(Function):
    """No gradient for its input."""
    forward = staticmethod(lambda ctx, a: a * 2)
    backward = staticmethod(lambda ctx, g: None)

class Counted(Function):
    calls = 0
    forward = staticmethod(lambda ctx, a: a * 2)
    @staticmethod
    def backward(ctx, g):
        Counted.calls += 1
        return g * 2

class Few(Function):
    forward = staticmethod(lambda ctx, a, b: a * b)
    backward = staticmethod(lambda ctx, g: g)

class Odd(Function):
    forward = staticmethod(lambda ctx, a: a * 1)
    backward = staticmethod(lambda ctx, g: g[:1])

def layers(d):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.LayerNorm(7), torch.nn.Linear(7, 2))
    net = net.to(d)
    torch.nn.functional.cross_entropy(net(new(4, 5, device=d)), torch.tensor([0, 1, 1, 0]).to(d)).backward()
    return [p.grad for p in net.parameters()]

def trained(d):
    torch.manual_seed(3)
    net = torch.nn.Linear(5, 2).to(d)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(new(4, 5, device=d)).square().sum().backward()
    optimizer.step()
    return list(net.parameters())

def functional(d):
    return [torch.func.grad(lambda t: (t.sin() * t).sum())(new(3, device=d).detach())]

def parts(d):
    a = new(3, 4, device=d)
    (a.unbind(0)[1] * a.split([1, 3], 1)[1].sum()).sum().backward()
    return [a.grad]

def twice(d):
    a = new(3, device=d)
    for _ in range(2):
        (a * a + a.exp()).sum().backward()
    return [a.grad]

def again(d):
    a = new(3, device=d)
    y = (a * a * a).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [a.grad]

def ordered(d):
    """The sum of the three gradients depends on which are added first."""
    a = new(3, device=d)
    large, negative, small = a * 1e8, a * -1e8, a * 1.0
    torch.stack([large, negative, small]).sum().backward()
    return [a.grad]

def custom(d):
    a, b = new(3, device=d), new(3, 1, device=d)[:, 0].detach().requires_grad_()
    y, z = Scaled.apply(3.0, a, torch.ones(3, device=d), b)
    (y.sum() + z.exp().sum()).backward()
    return [a.grad, b.grad]

def nothing(d):
    Seen.got.clear()
    a = new(2, device=d)
    for keeps in (True, False):
        Seen.apply(a, keeps)[1].sum().backward()
    return [a.grad, list(Seen.got)]

def mixed(d):
    Mixed.got.clear()
    a = new(2, device=d)
    Mixed.apply(a)[0].sum().backward()
    return [a.grad, list(Mixed.got)]

def missing(d):
    """Behind a function without a gradient, a custom one gets zeros, and others are not called."""
    a, b = new(2, device=d), new(2, 1, device=d)
    Cut.apply(Seen.apply(a, False)[1] + b.exp()[:, 0]).sum().backward()
    Counted.calls = 0
    c = Counted.apply(a)
    grad((Counted.apply(c) * b[:, 0]).sum(), [c, b])
    return [a.grad, b.grad, Counted.calls]

def hooks(d):
    a = new(3, device=d)
    b = a * 2
    seen = []
    b.register_hook(lambda g: g * 3)
    b.register_hook(lambda g: seen.append(g.tolist()))
    a.register_hook(lambda g: g + 1)
    b.register_hook(lambda g: g * 100).remove()
    b.retain_grad()
    a.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (b * b).sum().backward()
    return [a.grad, b.grad, seen]

def around(d):
    """Hooks of nodes: of a built-in one, of a leaf's and of a custom one, before and after it."""
    a, seen = new(3, device=d), []
    b = a * 2
    c = Counted.apply(b)
    note = lambda name: lambda *of: seen.append([name, *([g if g is None else g.tolist() for g in gs] for gs in of)])
    b.register_hook(lambda g: g + 1)
    b.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    b.grad_fn.register_hook(lambda new, grads: (new[0] + grads[0], *new[1:]))
    for name, node in {"leaf": b.grad_fn.next_functions[0][0], "custom": c.grad_fn, "product": b.grad_fn}.items():
        node.register_prehook(note(name))
        node.register_hook(note(name))
        node.register_hook(lambda new, grads: seen.append(name)).remove()
    (c * c).sum().backward(retain_graph=True)
    b.grad_fn.register_hook(lambda new, grads: (None, None, None))
    try:
        c.sum().backward()
    except RuntimeError as error:
        seen.append(str(error))
    return [a.grad, seen]

def marked(d):
    Marked.got.clear()
    a = new(2, 3, device=d)
    for keeps in (True, False):
        Marked.apply(a, keeps)[1].sum().backward()
    return [a.grad, list(Marked.got)]

def asked(d):
    a, b, c = new(3, device=d), new(3, 1, device=d), new(1, 3, 1, device=d)
    m = a * b
    y = (m * m).sum()
    found = grad(y, [a, m, c], allow_unused=True)
    return [*found, a.grad, b.grad]

def chosen(d):
    a, b = new(3, device=d), new(3, 1, device=d)
    (a * b).sum().backward(inputs=[b])
    return [a.grad, b.grad]

def second(d):
    a = new(3, device=d)
    (first,) = grad((a ** 3).sum(), a, create_graph=True)
    (first * a).sum().backward()
    return [first.detach(), a.grad]

def changed(d):
    a, c = new(3, device=d), new(2, 1, device=d)
    b = a * 1
    b[0] = c[0, 0]
    b.mul_(2)
    b.relu_()
    b.sum().backward()
    return [a.grad, c.grad]

def kinds(d):
    a = new(4, device=d)
    (a.half() * a.bfloat16().float()).sum().backward()
    return [a.grad]

def several(d):
    a, b = new(3, device=d), new(3, 1, device=d)
    y = a * b
    torch.autograd.backward([y, a.sum()], [torch.ones_like(y), None])
    return [a.grad, b.grad]

def refused(d):
    a, b = new(3, device=d), new(3, 1, device=d)
    found = []
    for call in (
        lambda: torch.ones((), device=d).backward(),
        lambda: grad(a.sum(), b),
        lambda: a.backward(),
        lambda: torch.autograd.backward([a.sum(), torch.ones((), device=d)]),
        lambda: Few.apply(a, a).sum().backward(),
        lambda: Odd.apply(a).sum().backward(),
        lambda: (_ for _ in ()).throw(RuntimeError("reached")),
    ):
        try:
            call()
        except RuntimeError as error:
            text = str(error).split(".")[0]
            found.append(text.partition(" appears ")[2] or text)  # torch's versions name the tensor or do not
    return [found]

def held(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value

for name in NAMES:
    graph = globals()[name]
    said[name] = [[held(value) for value in graph(device)] for device in ("cpu", "cuda")]
    if graph is not refused:
        assert all(v.is_cuda for v in graph("cuda") if isinstance(v, torch.Tensor)), graph
'''


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("backward")
    return run_script(f"NAMES = {NAMES}\n{GRAPHS}", folder, prelude=TORCH_PRELUDE)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_cpu(said: dict[str, Any], name: str) -> None:
    on_cpu, on_device = said[name]
    assert on_cpu == on_device
    assert any(value is not None for value in on_cpu)


def test_every_refusal_is_one(said: dict[str, Any]) -> None:
    (found,) = said["refused"][1]
    assert len(found) == 7
    assert found[-1] == "reached"
