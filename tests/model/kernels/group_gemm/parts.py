"""What both twins have: tensor maps of run-time groups, and copies of scales. ``write_version`` inserts it."""

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass.cute.nvgpu import tcgen05


def ceil_div(a, b):
    """Quotient, rounded up."""
    return (a + b - 1) // b


def pick(values, index):
    """The item at a run-time index."""
    chosen = values[0]
    for i in range(1, len(values)):
        chosen = cutlass.select_(index == i, values[i], chosen)
    return chosen


def map_type():
    """Type of a pointer to a tensor map."""
    descriptor = cute_nvgpu_ir.TmaDescriptorTiledType.get()
    return cute_ir.PtrType.get(descriptor, cute.AddressSpace.generic, 64)


def descriptor_address(atom):
    """Address of an atom's tensor map, a parameter of the kernel."""
    executable = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value)
    pointer = cute_nvgpu_ir.get_tma_desc_addr(map_type(), executable)
    return pointer.toint()


def descriptor_pointer(address):
    """Pointer to the tensor map at an address."""
    aligned = cute_ir.assume(cute_ir.ConstrainedIntType.get(64, 64), address.ir_value())
    return cute_ir.inttoptr(map_type(), aligned)


def scales_to_tmem(atom, shared, columns):
    """Copy of a stage's scales to tensor memory: (copy, sources of all stages, target)."""
    compact = cute.filter_zeros(columns)
    copy = tcgen05.make_s2t_copy(atom, compact)
    source = copy.get_slice(0).partition_S(cute.filter_zeros(shared))
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, source), copy.get_slice(0).partition_D(compact)
