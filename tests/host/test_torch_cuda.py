"""device="cuda" without a GPU: the rules of two memories, in a worker (the redirection is process-wide)."""

from pathlib import Path

import pytest

from tests.host.redirect_worker import run_script

PRELUDE = """
import collections
import io
import json
import math
import copy
import numpy
import torch
from torch import library
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch._subclasses.fake_tensor import FakeTensorMode
from pytest_nvfp4.host import torch_cuda
from pytest_nvfp4.driver.launches import HostSideError
said = {}
torch.manual_seed(0)
before = torch.randn(3)
redirect = torch_cuda.install()

def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    body = """
d = torch.device("cuda")
h = torch.arange(6.0)
x = torch.arange(6, device="cuda").reshape(2, 3)
factories = {
    "empty": lambda: torch.empty(3, device="cuda"), "zeros": lambda: torch.zeros(3, device=d),
    "ones": lambda: torch.ones(3, device="cuda:0"), "full": lambda: torch.full((3,), 2.0, device=0),
    "tensor": lambda: torch.tensor([1, 2, 3], device="cuda"), "new_tensor": lambda: x.new_tensor([1, 2, 3]),
    "pinned": lambda: torch.tensor([1, 2, 3], pin_memory=True).to("cuda", non_blocking=True),
    "as_tensor": lambda: torch.as_tensor([1.0], device=d),
    "arange": lambda: torch.arange(3, device="cuda"), "randn": lambda: torch.randn(3, device="cuda"),
    "randint": lambda: torch.randint(0, 9, (3,), device="cuda"), "rand": lambda: torch.rand(3, device="cuda"),
    "empty_like": lambda: torch.empty_like(h, device="cuda"), "new_zeros": lambda: x.new_zeros(3),
    "cuda": lambda: h.cuda(), "cuda0": lambda: h.cuda(0), "to": lambda: h.to("cuda"),
    "to_dtype": lambda: h.to("cuda", torch.float16), "to_like": lambda: h.to(x),
    "generator": lambda: torch.randn(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)),
    "empty_strided": lambda: torch.empty_strided((2, 2), (1, 2), device="cuda"),
    "view_fp4": lambda: torch.zeros(4, 4, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2),
    "fp8": lambda: torch.ones(4, device="cuda").to(torch.float8_e4m3fn),
    "op": lambda: x + 1, "out": lambda: torch.add(x, 1, out=torch.empty_like(x)), "clone": lambda: x.clone(),
    "FloatTensor": lambda: torch.cuda.FloatTensor([1, 2]), "new": lambda: x.new([1]), "new_sizes": lambda: x.new(2, 3),
    "type": lambda: h.type(torch.cuda.HalfTensor), "type_name": lambda: h.type("torch.cuda.IntTensor"),
    "deepcopy": lambda: copy.deepcopy(x), "from_dlpack": lambda: torch.from_dlpack(x),
}
q = torch.randn(1, 2, 16, 32, device="cuda", dtype=torch.float16)
usual = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    chosen = torch.nn.functional.scaled_dot_product_attention(query=q, key=q, value=q, is_causal=True)
    said["attention"] = [bool((chosen == usual).all()), torch.backends.cuda.math_sdp_enabled()]
said["devices"] = {name: str(make().device) for name, make in factories.items()}
said["is_cuda"] = all(make().is_cuda for make in factories.values())
said["types"] = all(isinstance(make(), torch.Tensor) for make in factories.values())
said["aligned"] = {name: make().data_ptr() % 512 for name, make in factories.items() if name != "view_fp4"}
with torch.device("cuda"):
    said["device_context"] = [str(t.device) for t in (torch.tensor([1]), torch.empty(2), torch.arange(3))]
torch.set_default_device("cuda")
said["default_device"] = [str(torch.tensor([1]).device), str(torch.ones(2).device)]
torch.set_default_device(None)
torch.set_default_tensor_type(torch.cuda.DoubleTensor)
said["default_type"] = [str(torch.ones(2).device), str(torch.ones(2).dtype)]
torch.set_default_tensor_type("torch.cuda.FloatTensor")
said["default_type"] += [str(torch.ones(2).device), str(torch.ones(2).dtype)]
torch.set_default_device(None)
said["cpu_stays"] = [str(t.device) for t in (torch.tensor([1]), torch.empty(2), h + 1, torch.zeros(2, device="cpu"))]

# copies and views
gpu = h.cuda()
gpu[0] = 99
said["cuda_copies"] = [h[0].item(), gpu[0].item()]
back = gpu.cpu()
gpu[1] = 77
said["cpu_copies"] = [back[0].item(), back[1].item(), str(back.device)]
said["cuda_of_cuda_is_itself"] = gpu.cuda() is gpu and gpu.to("cuda").data_ptr() == gpu.data_ptr()
view = gpu[2:].view(2, 2)
view[0, 0] = -1
said["views_share"] = [gpu[2].item(), view.data_ptr() - gpu.data_ptr(), view[1].storage_offset()]
gpu.mul_(2)
said["in_place"] = view.tolist()
cpu = torch.zeros(6)
cpu.copy_(gpu)
said["copy_to_cpu"] = [cpu.tolist() == gpu.tolist(), str(cpu.device)]
said["strided"] = torch.arange(12.0, device="cuda").as_strided((3, 2), (1, 4), 2).tolist()
out = torch.empty(6, device="cuda")
said["out_is_out"] = torch.add(gpu, 1, out=out) is out
said["empty_is_poisoned"] = bool(torch.empty(64, dtype=torch.float16, device="cuda").isnan().all())
said["zero_size"] = list(torch.empty(0, 4, device="cuda").shape)
module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
moved = copy.deepcopy(module).cuda()
said["module"] = [torch.allclose(moved(x.float()).cpu(), module(x.float().cpu())), str(moved[0].weight.device),
                  str(moved.cpu()[0].weight.device)]
said["permute"] = [list(x.permute(1, 0).stride()), x.permute(1, 0).is_contiguous()]

# errors torch gives on a GPU, and errors of our own
said["mixed"] = refused(lambda: h + gpu)
said["mixed_scalar"] = refused(lambda: gpu + torch.tensor(2.0))
def stored(t, index):
    t = t.clone()
    t[index] = 9
    return t
grid = torch.arange(24).reshape(4, 6)
indices = {
    "list": [0, 2], "range": range(2), "bools": [True, False, True, False], "empty": [], "numpy": [numpy.int64(1)],
    "in a tuple": (slice(None), [1, 3]), "two": ([0, 1], (2, 3)), "nested": ([[0, 1], [2, 3]], 1),
    "beside a tensor": ([0, 1], torch.tensor([1, 2])), "beside others": (None, ..., [1]),
    "list of tensors": [torch.tensor(1), torch.tensor(2)], "list of a slice": [slice(0, 2), 1],
    "list of lists": [[0, 1], [2, 3]],
}
said["indices"] = {
    name: [use(grid.cuda(), index).cpu().tolist() == use(grid, index).tolist() for use in (lambda t, i: t[i], stored)]
    for name, index in indices.items()
}
said["wrong_index"] = refused(lambda: grid.cuda()[[0.5]])
def stored_as(location, value):
    file, tag = io.BytesIO(), torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: location
    torch.save(value, file)
    torch.serialization.location_tag = tag
    file.seek(0)
    return file
state = collections.OrderedDict(w=torch.arange(3.0), more=[torch.ones(2, 2).t(), 5])
loads = {
    "host": (stored_as("cpu", state), {}), "mapped": (stored_as("cpu", state), {"map_location": "cuda"}),
    "device": (stored_as("cuda:0", state), {}), "back": (stored_as("cuda:0", state), {"map_location": "cpu"}),
    "dict": (stored_as("cuda:1", state), {"map_location": {"cuda:1": "cuda:0"}}),
    "called": (stored_as("cuda:0", state), {"map_location": lambda storage, location: storage}),
}
said["loads"] = {}
for name, (file, given) in loads.items():
    loaded = torch.load(file, **given)
    said["loads"][name] = [str(loaded["w"].device), str(loaded["more"][0].device), loaded["w"].tolist(),
        loaded["more"][0].stride(), loaded["more"][1]]
parameter = torch.load(stored_as("cpu", torch.nn.Parameter(torch.ones(2))), "cuda")
said["parameter"] = [isinstance(parameter, torch.nn.Parameter), str(parameter.device), parameter.requires_grad]
said["mixed_index"] = refused(lambda: gpu[torch.tensor([0, 1])])
said["mixed_store"] = refused(torch.cat, [h, gpu])
said["mixed_index_self"] = refused(lambda: h[torch.tensor([1], device="cuda")])
said["numpy"] = refused(x.numpy)
said["second_gpu"] = refused(torch.empty, 2, device="cuda:1")
said["storage"] = refused(lambda: x.untyped_storage().resize_(0))
said["metadata_in_place"] = refused(x.t_)
said["graph"] = refused(torch.cuda.CUDAGraph)
said["layouts"] = [refused(grid.cuda().to_sparse), refused(grid.cuda().to_sparse_csr)]
said["batched"] = refused(torch.func.jacrev(torch.sin), gpu)
said["snapshot"] = [refused(m.memory_snapshot) for m in (torch.cuda, torch.cuda.memory)]
said["pickle"] = refused(copy.copy, x)
said["twice"] = refused(torch_cuda.install)

# the older types of tensors
kinds = torch.cuda.LongTensor([[1, 2]]), torch.cuda.HalfTensor(2, 3), torch.cuda.FloatTensor(), h.new([3])
said["types of old"] = [[kind.type(), list(kind.shape)] for kind in kinds]
said["values of old"] = [kinds[0].tolist(), x.new([3]).tolist(), h.type(torch.cuda.IntTensor).tolist(),
    x.type(torch.FloatTensor)[0].tolist()]
said["instances of old"] = [isinstance(t, torch.cuda.FloatTensor) for t in (gpu, h, x)]

# memory
torch.cuda.reset_peak_memory_stats()
held = torch.cuda.memory_allocated()
big = torch.empty(1000, device="cuda")
more = [torch.cuda.memory_allocated() - held, torch.cuda.memory.max_memory_allocated() - held]
del big
more += [torch.cuda.memory_allocated() - held, torch.cuda.max_memory_allocated() - held]
more.append(torch.cuda.memory_stats()["allocated_bytes.all.peak"] - held)
torch.cuda.reset_peak_memory_stats()
free, total = torch.cuda.mem_get_info()
said["memory"] = [*more, torch.cuda.max_memory_allocated() - held, total - free - held,
    torch.accelerator.memory_allocated() - held]

# values
said["numbers"] = [x.sum().item(), x.tolist(), f"{x.sum()}", f"{x.float().mean():.2f}", bool(x.max() == 5), len(x)]
said["repr"] = repr(x[0])
said["equal"] = [torch.equal(x, x.clone()), torch.allclose(gpu, gpu), refused(torch.testing.assert_close, gpu, gpu)]
said["not_equal"] = refused(torch.testing.assert_close, gpu, gpu + 1)[0]
said["dlpack"] = [[int(v) for v in x.__dlpack_device__()], "dltensor" in repr(x.__dlpack__(stream=-1))]
said["cpu_dlpack"] = int(h.__dlpack_device__()[0])

# storages and interfaces
store, part = gpu.untyped_storage(), gpu[2:]
host = store.cpu()
host_is_apart = host.data_ptr() != store.data_ptr()
host[0] = host[0] ^ 1
said["storages"] = [store.data_ptr() == gpu.data_ptr(), store.nbytes(), len(store), str(store.device), store.is_cuda,
    part.untyped_storage().data_ptr() == store.data_ptr(), host_is_apart, bytes(host) != bytes(store.cpu())]
kept = store.cpu()
store.copy_(torch.zeros(6).untyped_storage())
said["storages"].append(gpu.tolist())
store.copy_(torch.arange(6.0, device="cuda").untyped_storage())
said["storages"] += [gpu.tolist(), hasattr(store, "no_such_thing")]
store.copy_(kept)
interface = gpu[2:].__cuda_array_interface__
said["interface"] = [interface["data"] == (gpu.data_ptr() + 8, False), list(interface["shape"]), interface["typestr"]]

# what does not go through torch.cuda
raw = torch._C._cuda_getCurrentRawStream
side = torch.cuda.Stream()
with torch.cuda.stream(side) as nothing:
    said["raw_stream"] = [raw(0) == side.cuda_stream, torch.accelerator.current_stream() == side, nothing]
said["raw_stream"].append(raw(0))
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool, device=0):
    in_pool = torch.zeros(3, device="cuda")
said["pools"] = [in_pool.tolist(), pool.id != torch.cuda.memory.MemPool().id, refused(torch.cuda.MemPool, object())]
said["external"] = torch.cuda.get_stream_from_external(77, "cuda").cuda_stream
said["accelerator"] = [torch.accelerator.is_available(), torch.accelerator.device_count(),
    str(torch.accelerator.current_accelerator()), torch.accelerator.synchronize()]
said["context_class"] = isinstance(torch.cuda.stream(side), torch.cuda.StreamContext)
@torch.compile(fullgraph=True)
def doubled(a):
    return a * 2
said["compiled"] = [doubled(x).tolist(), torch.compile(lambda a: a + 1)(x).tolist(),
    type(torch.compile(module)).__name__]
with FakeTensorMode():
    without_data = torch.empty_strided((2, 3), (3, 1), device="cuda")
    without_data = [without_data, without_data + 1, without_data.cpu()]
said["without data"] = [[type(made).__name__, str(made.device)] for made in without_data]
weight = torch.ones(3, device="cuda", requires_grad=True)
(weight * 2).sum().backward()
said["backward"] = weight.grad.tolist()
hooked = torch.ones(3, requires_grad=True)
hooked.register_hook(lambda grad: (_ for _ in ()).throw(RuntimeError("of a hook")))
said["backward_of_others"] = refused((hooked * 2).sum().backward)

# operators of the user's own, and operators that come undecomposed
@library.custom_op("nvfp4_test::add_two", mutates_args={"out"})
def add_two(a: torch.Tensor, out: torch.Tensor) -> None:
    two = torch.tensor([2], device="cuda") if a.data_ptr() else None
    out.copy_(a + two.to(a.dtype) + torch.zeros(1, dtype=a.dtype, device="cuda"))
said["custom"] = []
for _ in range(2):
    torch.ops.nvfp4_test.add_two(x, out=(filled := torch.empty_like(x)))
    said["custom"].append(filled.tolist())
with torch.inference_mode():
    moved = torch.arange(6.0).to("cuda")
    said["inference"] = [str(moved.device), moved.reshape(2, 3).t().contiguous().tolist(), (moved @ moved).item()]

# random numbers: reproducible, and the CPU stream is not disturbed
torch.manual_seed(7); a = torch.randn(4, device="cuda"); b = torch.randn(4)
torch.manual_seed(7); c = torch.randn(4, device="cuda"); e = torch.randn(4)
torch.manual_seed(7); f = torch.randn(4)
said["seeded"] = [torch.equal(a, c), torch.equal(b, e), torch.equal(b, f)]
g = torch.Generator(device="cuda").manual_seed(1)
said["generator"] = [str(g.device), *(isinstance(v, torch.Generator) for v in (g, torch.default_generator))]

# torch.cuda
p = torch.cuda.get_device_properties(0)
said["properties"] = [len(str(p.uuid)), p.clock_rate > 0, p.memory_bus_width > 0]
said["priorities"] = torch.cuda.Stream.priority_range()
torch.cuda.seed_all()
state = torch.cuda.get_rng_state_all()
drawn = torch.rand(2, device="cuda")
torch.cuda.set_rng_state_all(state)
said["states"] = [len(state), torch.equal(drawn, torch.rand(2, device="cuda"))]
said["cuda"] = [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device(),
    list(torch.cuda.get_device_capability()), torch.cuda.get_device_name(), p.multi_processor_count, p.major]
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    said["stream"] = [torch.cuda.current_stream() == s, s.cuda_stream != 0]
said["stream"] += [torch.cuda.current_stream().cuda_stream, torch.cuda.default_stream().cuda_stream]
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(); end.record(); torch.cuda.synchronize()
said["elapsed_nan"] = math.isnan(start.elapsed_time(end))
with torch.cuda.device(0):
    pass
said["wrong_device"] = refused(torch.cuda.set_device, 3)
entered = []
for guard in (torch.cuda.device("cuda"), torch.cuda.device(None), torch.cuda.device_of(x), torch.cuda.device_of(h)):
    with guard:
        entered.append(torch.empty(1, device="cuda").get_device())
said["guards"] = entered
said["wrong_guard"] = refused(torch.cuda.device(3).__enter__)

# streams, and what operators do on them
import threading
from pytest_nvfp4.host.tensor import HostCudaTensor

class Watcher:
    def __init__(self):
        self.works, self.blocks, self.recorded_on = [], {}, []
    def worked(self, work, reads, writes):
        self.works.append((work, len(reads), len(writes)))
    def allocated(self, address, size, stream, line, *, pooled):
        self.blocks[address] = [size, stream, pooled, line.line]
    def freed(self, address, line):
        del self.blocks[address]
    def recorded(self, address, stream):
        self.recorded_on.append([address, stream])
    def block(self, address):
        return None

s.__enter__()
said["entered"] = torch.cuda.current_stream() == s
others = []
thread = threading.Thread(target=lambda: others.append(torch.cuda.current_stream().cuda_stream))
thread.start(); thread.join()
said["of_another_thread"] = others
s.__exit__(None, None, None)
said["left"] = torch.cuda.current_stream().cuda_stream
said["classes"] = [isinstance(torch.cuda.current_stream(), torch.cuda.Stream), isinstance(s, torch.cuda.Stream),
    isinstance(torch.cuda.ExternalStream(5), torch.cuda.Stream), isinstance(s.record_event(), torch.cuda.Event)]
streams, watcher = HostCudaTensor.side.streams, Watcher()
mask, where = torch.tensor([True, False], device="cuda"), torch.tensor([0, 1], device="cuda")
scratch, there = torch.empty(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64, device="cuda")
watched = {
    "add": lambda: x + 1, "in place": lambda: there.add_(1), "out": lambda: torch.add(x, 1, out=there),
    "fill": lambda: there.__setitem__(0, 3), "view": lambda: x.view(-1)[1:].permute(0), "shape": lambda: x.shape,
    "unsafe view": lambda: torch.ops.aten._unsafe_view(x, [6]),
    "empty": lambda: torch.empty(3, device="cuda"), "zeros": lambda: torch.zeros(3, device="cuda"),
    "item": lambda: x[0, 0].item(), "bool": lambda: bool(x[0, 0]), "tolist": lambda: x.tolist(),
    "repr": lambda: repr(x), "on the host": lambda: (h + 1).to(torch.int32).nonzero()[0, 0].item(),
    "equal": lambda: torch.equal(x, there), "nonzero": lambda: x.nonzero(), "mask": lambda: x[mask],
    "index": lambda: x[where], "index from host": lambda: x[torch.tensor([0])],
    "matrix": lambda: x.float() @ x.float().t(),
    "to host": lambda: x.cpu(), "to host later": lambda: x.to("cpu", non_blocking=True),
    "to device": lambda: h.cuda(), "to device later": lambda: h.cuda(non_blocking=True),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"), "between": lambda: there.copy_(x),
    "into host": lambda: scratch.copy_(x), "into host later": lambda: scratch.copy_(x, non_blocking=True),
    "from host": lambda: there.copy_(scratch), "from host later": lambda: there.copy_(scratch, non_blocking=True),
}
streams.watcher = watcher
said["work"] = {}
for name, call in watched.items():
    watcher.works.clear()
    with torch.cuda.stream(s):
        call()
    assert all(work.stream == s.cuda_stream for work, _, _ in watcher.works)
    said["work"][name] = [[reads, writes, streams.done(work)] for work, reads, writes in watcher.works]
with torch.cuda.stream(s):
    made = torch.empty(3, device="cuda")
made.record_stream(torch.cuda.default_stream())
address = made.data_ptr()
said["block"] = [watcher.blocks[address][:3] == [12, s.cuda_stream, True], watcher.recorded_on == [[address, 0]]]
del made
said["freed"] = address not in watcher.blocks
work = watcher.works[-1][0]
said["not_done"] = [streams.done(work)]
there.add_(1); work = watcher.works[-1][0]; said["not_done"].append(streams.done(work))
torch.cuda.current_stream().synchronize(); said["not_done"].append(streams.done(work))
streams.watcher = None

redirect.close()
said["closed"] = [torch.cuda.is_available(), refused(torch.empty, 2, device="cuda") is not None, (h + 1).tolist()[0],
    x.sum().item()]
torch.cuda.is_available = lambda: True
said["claims"] = []
for count in (1, 0):
    torch.cuda.device_count = lambda count=count: count
    said["claims"].append(refused(torch_cuda.install))
"""
    return run_script(body, tmp_path_factory.mktemp("torch"), prelude=PRELUDE)


@pytest.mark.slow
def test_every_way_to_make_a_device_tensor(said):
    assert set(said["devices"].values()) == {"cuda:0"}, said["devices"]
    assert said["is_cuda"]
    assert said["types"]
    assert said["device_context"] == ["cuda:0"] * 3
    assert said["default_device"] == ["cuda:0"] * 2
    assert said["default_type"] == ["cuda:0", "torch.float64", "cuda:0", "torch.float32"]
    assert said["cpu_stays"] == ["cpu"] * 4


@pytest.mark.slow
def test_older_types_of_tensors(said):
    assert said["types of old"] == [
        ["torch.cuda.LongTensor", [1, 2]], ["torch.cuda.HalfTensor", [2, 3]], ["torch.cuda.FloatTensor", [0]],
        ["torch.FloatTensor", [1]],
    ]  # fmt: skip
    assert said["values of old"] == [[[1, 2]], [3], [0, 1, 2, 3, 4, 5], [0.0, 1.0, 2.0]]
    assert said["instances of old"] == [True, False, False]


@pytest.mark.slow
def test_memory_that_tensors_hold(said):
    assert said["memory"] == [4000, 4000, 0, 4000, 4000, 0, 0, 0]


@pytest.mark.slow
def test_operators_of_the_users_own_get_device_tensors(said):
    assert said["custom"] == [[[2, 3, 4], [5, 6, 7]]] * 2
    assert said["inference"] == ["cuda:0", [[0, 3], [1, 4], [2, 5]], 55]


def test_device_memory_is_aligned_and_poisoned_like_a_device(said):
    assert set(said["aligned"].values()) == {0}, said["aligned"]
    assert said["empty_is_poisoned"]


def test_moving_between_memories_copies(said):
    assert said["cuda_copies"] == [0.0, 99.0]
    assert said["cpu_copies"] == [99.0, 1.0, "cpu"]
    assert said["cuda_of_cuda_is_itself"]
    assert said["copy_to_cpu"] == [True, "cpu"]


def test_files_are_loaded_to_the_device(said):
    on = {"host": "cpu", "mapped": "cuda:0", "device": "cuda:0", "back": "cpu", "dict": "cuda:0", "called": "cpu"}
    assert said["loads"] == {name: [device, device, [0.0, 1.0, 2.0], [1, 2], 5] for name, device in on.items()}
    assert said["parameter"] == [True, "cuda:0", True]


def test_lists_are_indices(said):
    assert set(map(tuple, said["indices"].values())) == {(True, True)}, said["indices"]
    assert said["wrong_index"] is not None


def test_views_share_memory(said):
    assert said["views_share"] == [-1.0, 8, 4]
    assert said["in_place"] == [[-2.0, 6.0], [8.0, 10.0]]
    assert said["strided"] == [[2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]
    assert said["out_is_out"]
    assert said["zero_size"] == [0, 4]
    assert said["permute"] == [[1, 3], False]


def test_a_module_moves_to_the_device_and_back(said):
    assert said["module"] == [True, "cuda:0", "cpu"]


def test_mixing_devices_is_an_error_where_torch_says_so(said):
    for name in ("mixed", "mixed_store", "mixed_index_self"):
        assert said[name][0] == "RuntimeError"
        assert "same device" in said[name][1]
    assert said["mixed_scalar"] is None
    assert said["mixed_index"] is None


def test_guards_of_a_device_and_of_a_tensor_leave_the_one_device_current(said):
    assert said["guards"] == [0, 0, 0, 0]


def test_what_has_no_equivalent_is_an_error_with_its_name(said):
    assert said["numpy"][0] == "TypeError"
    assert "cuda:1" in said["second_gpu"][1]
    assert "torch.UntypedStorage.resize_" in said["storage"][1]
    assert "aten::t_" in said["metadata_in_place"][1]
    assert "torch.cuda.CUDAGraph" in said["graph"][1]
    for (kind, message), layout in zip(said["layouts"], ("sparse_coo", "sparse_csr"), strict=True):
        assert kind == "HostSideError"
        assert f"makes a tensor of the layout torch.{layout}, which has no stand-in" in message
    assert "a backward pass inside torch.vmap" in said["batched"][1]
    assert all("torch.cuda.memory_snapshot has no stand-in" in refused[1] for refused in said["snapshot"])
    assert "pickled" in said["pickle"][1]
    assert "already installed" in said["twice"][1]
    for name in ("wrong_device", "wrong_guard"):
        assert "cuda:3" in said[name][1]


def test_a_real_gpu_is_not_hidden_but_a_claim_without_a_device_is(said):
    real, claimed = said["claims"]
    assert "torch has a real GPU" in real[1]
    assert claimed is None


def test_a_storage_has_an_address_a_size_and_copies(said):
    assert said["storages"] == [True, 24, 24, "cuda:0", True, True, True, True, [0.0] * 6, [0.0, 1, 2, 3, 4, 5], False]


def test_the_array_interface_gives_the_address_of_the_elements(said):
    assert said["interface"] == [True, [4], "<f4"]


def test_what_does_not_go_through_torch_cuda(said):
    assert said["raw_stream"] == [True, True, None, 0]
    assert said["external"] == 77
    assert said["accelerator"] == [True, 1, "cuda:0", None]
    assert said["context_class"]


def test_memory_pools_change_no_result(said):
    values, own, refused = said["pools"]
    assert values == [0.0, 0.0, 0.0]
    assert own
    assert refused[0] == "HostSideError"
    assert "with an allocator of its own has no stand-in" in refused[1]


def test_compiled_functions_run_as_they_are(said):
    assert said["compiled"] == [[[0, 2, 4], [6, 8, 10]], [[1, 2, 3], [4, 5, 6]], "Sequential"]


def test_tensors_without_data_are_torchs_own(said):
    assert said["without data"] == [["FakeTensor", "cuda:0"], ["FakeTensor", "cuda:0"], ["FakeTensor", "cpu"]]


def test_a_backward_pass_runs_and_one_without_device_tensors_is_torchs_own(said):
    assert said["backward"] == [2.0] * 3
    assert said["backward_of_others"] == ["RuntimeError", "of a hook"]


def test_values_print_and_compare(said):
    assert said["numbers"] == [15, [[0, 1, 2], [3, 4, 5]], "15", "2.50", True, 2]
    assert said["repr"] == "tensor([0, 1, 2], device='cuda:0')"
    assert said["equal"] == [True, True, None]
    assert said["not_equal"] == "AssertionError"


def test_dlpack_says_cuda_for_device_tensors_only(said):
    assert said["dlpack"] == [[2, 0], True]
    assert said["cpu_dlpack"] == 1


def test_random_numbers_are_reproducible_and_apart(said):
    assert said["seeded"] == [True, True, True]
    assert said["generator"] == ["cuda:0", True, True]


def test_torch_cuda_answers_for_the_modelled_device(said):
    assert said["cuda"] == [True, 1, 0, [10, 0], "NVIDIA B200", 148, 10]
    assert said["properties"] == [36, True, True]
    assert said["priorities"] == [0, -5]
    assert said["states"] == [1, True]
    assert said["stream"] == [True, True, 0, 0]
    assert said["elapsed_nan"]


def test_the_current_stream_is_that_of_a_thread(said):
    assert said["entered"]
    assert said["of_another_thread"] == [0]
    assert said["left"] == 0
    assert said["classes"] == [True] * 4


READS, WRITES, BOTH, NOTHING = [1, 0], [0, 1], [1, 1], []
WORK = {
    # operator: tensors that it reads and writes, and whether the host waits for it
    "add": [[*BOTH, False]], "in place": [[*WRITES, False]], "out": [[*BOTH, False]], "fill": [[*WRITES, False]],
    "view": NOTHING, "on the host": NOTHING, "shape": NOTHING, "unsafe view": NOTHING, "empty": NOTHING,
    "zeros": [[*WRITES, False]],
    "item": [[*READS, True]], "bool": [[*READS, True]], "tolist": [[*READS, True]], "repr": [[*READS, True]],
    "equal": [[2, 0, True]], "nonzero": [[*BOTH, True]], "mask": [[2, 1, True]], "index": [[2, 1, False]],
    "index from host": [[*BOTH, True]], "matrix": [[*BOTH, False], [*BOTH, False], [2, 1, False]],
    "to host": [[*READS, True]], "to host later": [[*READS, False]], "to device": [[*WRITES, True]],
    "to device later": [[*WRITES, False]], "tensor": [[*WRITES, True]], "between": [[*BOTH, False]],
    "into host": [[*READS, True]], "into host later": [[*READS, True]], "from host": [[*WRITES, True]],
    "from host later": [[*WRITES, False]],
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_what_an_operator_does_on_its_stream(said, name):
    assert said["work"][name] == WORK[name]


def test_memory_comes_from_the_pool_of_the_current_stream(said):
    assert said["block"] == [True, True]
    assert said["freed"]
    assert said["not_done"] == [False, False, True]


def test_attention_by_a_kernel_for_gpus_is_computed_by_its_formula(said):
    """And the choice holds for tensors of the host."""
    assert said["attention"] == [True, False]


def test_closing_restores_torch(said):
    assert said["closed"] == [False, True, 1.0, 15]


@pytest.mark.slow
def test_device_tensors_reach_the_dsl_as_global_memory(tmp_path):
    body = """
import cutlass.torch as cutlass_torch
types = []

@cute.kernel
def read(t: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    t[tidx] = t[tidx] + t[tidx]

@cute.jit
def host(t: cute.Tensor):
    types.append(str(t.type))
    read(t).launch(grid=[1, 1, 1], block=[32, 1, 1])

x = torch.zeros(64, dtype=torch.float32, device="cuda")
host(from_dlpack(x))
host(from_dlpack(x.cpu()))
said["spaces"] = ["gmem" in t for t in types]
said["pointer"] = struct.unpack("<Q", launches[0].params[0][:8])[0] == x.data_ptr()
reference = torch.arange(64 * 32.0).reshape(64, 32)
launches.clear()
_, converted = cutlass_torch.cute_tensor_like(reference, cutlass.Float16, True, 16)
said["copied"] = torch.equal(converted.cpu(), reference.half())
_, packed = cutlass_torch.cute_tensor_like(reference, cutlass.Float4E2M1FN, True, 16)
said["conversion_launches"] = len(launches)
said["streams"] = [int(cutlass_torch.current_stream()), int(cutlass_torch.default_stream())]
"""
    said = run_script(body, tmp_path)
    assert said["spaces"] == [True, False]
    assert said["pointer"]
    assert said["copied"]
    assert said["conversion_launches"] == 1
    assert said["streams"] == [0, 0]


@pytest.mark.slow
def test_profilers_that_ask_for_cuda_collect_nothing_of_it(tmp_path: Path) -> None:
    body = """
from torch.profiler import ProfilerActivity, profile
def names(*activities):
    with profile(activities=activities) as prof:
        torch.ones(4, device="cuda").add_(1)
    return sorted({event.key for event in prof.key_averages()} & {"aten::ones", "aten::add_"}), (
        prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=5)
    )
said["both"] = names(ProfilerActivity.CPU, ProfilerActivity.CUDA)[0]
said["cuda"] = names(ProfilerActivity.CUDA)
with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("part {}", 1):
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("other"))
said["start"] = int(torch.cuda.cudart().cudaProfilerStart())
try:
    torch.cuda.cudart().cudaHostRegister
except HostSideError as error:
    said["other"] = str(error)
"""
    said = run_script(body, tmp_path, prelude=PRELUDE)
    assert said["both"] == ["aten::add_", "aten::ones"]
    assert said["cuda"][0] == []
    assert said["start"] == 0
    assert "cudaHostRegister has no stand-in" in said["other"]


OPERATORS = """
import sys

@library.custom_op("nvfp4_tests::double_into", mutates_args=("y",))
def double_into(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x * 2)

x, y = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
double_into(x, y)
said["doubled"] = y.cpu().tolist()
said["imported"] = "torch._dynamo" in sys.modules
calls = []
plain = torch._disable_dynamo(lambda value, *, by: calls.append(value) or value + by)
partly = torch._disable_dynamo(recursive=False)(lambda value: value + 1)
said["called"] = [plain(1, by=2), partly(3)]
import torch._dynamo
seen = []
torch._dynamo.disable = lambda fn, *args, **kwargs: seen.append(fn) or fn
said["then"] = [plain(5, by=2), partly(3), len(seen)]
redirect.close()
said["given back"] = torch._disable_dynamo is torch._compile._disable_dynamo
"""


@pytest.mark.slow
def test_a_custom_operator_does_not_import_the_compiler_of_graphs(tmp_path: Path) -> None:
    said = run_script(OPERATORS, tmp_path, prelude=PRELUDE)
    assert said["doubled"] == [2.0, 2.0, 2.0]
    assert not said["imported"]
    assert said["called"] == [3, 4]
    assert said["then"] == [7, 4, 2], "once it is imported, torch's own wrapper is used"
    assert said["given back"]
