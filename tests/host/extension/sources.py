"""Extensions that tests build: plain shared libraries, which need none of torch's headers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.extension import compilers
from pytest_nvfp4.host.extension.build import Extension, build

needs_nvcc: Final = pytest.mark.skipif(
    next(compilers._nvccs(), None) is None or shutil.which("g++") is None,
    reason="needs nvcc and g++: pip install 'pytest-nvfp4[cuda]', apt-get install g++",
)

SPLIT: Final = r"""__global__ void split(unsigned* out) {
    unsigned made;
    asm volatile("{\n.reg .b32 t;\nmov.b32 t, 5;\nnot.b32 %0,\nt;\n}" : "=r"(made));
    *out = made;
}
"""
"""A kernel with an instruction in inline assembly that goes on in a line that begins with a letter."""

SCALE: Final = r"""#include <cuda_runtime.h>
#include <cuda.h>
#include <stdlib.h>

__global__ void scale(float* data, int count, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] *= by;
}

__global__ void __cluster_dims__(2) reversed(const float* in, float* out, int count) {
    extern __shared__ float kept[];
    kept[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[count - 1 - blockIdx.x * blockDim.x - threadIdx.x] = kept[threadIdx.x];
}

__global__ void sums(const float* in, float* out) {
    if (threadIdx.x == 0) {
        float total = 0;
        for (unsigned i = 0; i < blockDim.x; i++) total += in[blockIdx.x * blockDim.x + i];
        out[blockIdx.x] = total;
    }
}

__global__ void ranks(int* out) {
    int rank, size;
    asm volatile("mov.u32 %0, %%cluster_ctarank; mov.u32 %1, %%cluster_nctarank;" : "=r"(rank), "=r"(size));
    if (threadIdx.x == 0) out[blockIdx.x] = 10 * size + rank;
}

__global__ void tile(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ alignas(128) float kept[4 * 8];
    __shared__ alignas(8) unsigned long long arrived;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&arrived), to = (unsigned)__cvta_generic_to_shared(kept);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(bar) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" ::"r"(bar) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {8, 4}], [%2];" ::"r"(to), "l"(&map), "r"(bar) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra WAIT; }"
                 ::"r"(bar) : "memory");
    out[threadIdx.x] = kept[threadIdx.x];
}

extern "C" int clustered(int* out, int count, int size) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster[1];
    cluster[0].id = cudaLaunchAttributeClusterDimension;
    cluster[0].val.clusterDim.x = size, cluster[0].val.clusterDim.y = 1, cluster[0].val.clusterDim.z = 1;
    config.gridDim = count, config.blockDim = 32, config.attrs = cluster, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, ranks, out);
}

extern "C" int tiled(float* in, float* out) {
    void* encode = 0;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    CUtensorMap map;
    cuuint64_t sizes[2] = {32, 16}, strides[1] = {128};
    cuuint32_t box[2] = {8, 4}, steps[2] = {1, 1};
    CUresult error = ((decltype(&cuTensorMapEncodeTiled))encode)(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error) return error;
    tile<<<1, 32>>>(map, out);
    return cudaGetLastError();
}

extern "C" int scaled(float* data, int count, float by) {
    scale<<<(count + 31) / 32, 32>>>(data, count, by);
    return cudaGetLastError();
}

extern "C" int reverse(const float* in, float* out, int count) {
    int error = cudaFuncSetAttribute(reversed, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000);
    if (error) return error;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute pdl[1];
    pdl[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl[0].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = count / 32, config.blockDim = 32, config.dynamicSmemBytes = 60000;
    config.attrs = pdl, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, reversed, in, out, count);
}

extern "C" int totals(const float* host, float* sum, int count) {
    float *in, *out;
    cudaStream_t stream;
    cudaEvent_t done;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) || cudaEventCreate(&done)) return 1;
    if (cudaMallocAsync((void**)&in, count * 4, stream) || cudaMalloc((void**)&out, count / 32 * 4)) return 2;
    cudaMemcpyAsync(in, host, count * 4, cudaMemcpyHostToDevice, stream);
    sums<<<count / 32, 32, 0, stream>>>(in, out);
    cudaEventRecord(done, stream);
    if (cudaEventSynchronize(done)) return 3;
    int error = cudaMemcpy(sum, out, count / 32 * 4, cudaMemcpyDeviceToHost);
    cudaFreeAsync(in, stream), cudaFree(out);
    return error;
}

extern "C" int facts(int* to) {
    cudaDeviceProp properties;
    int error = cudaGetDeviceProperties(&properties, 0);
    to[0] = properties.multiProcessorCount, to[1] = properties.major, to[2] = properties.sharedMemPerBlockOptin;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&to[3], scale, 1024, 0);
    cudaFuncAttributes known;
    cudaFuncGetAttributes(&known, scale);
    to[4] = known.numRegs > 0;
    void* encode = 0;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    to[5] = encode != 0 && found == cudaDriverEntryPointSuccess;
    return error;
}

__constant__ float factors[4] = {1, 2, 3, 4};
static __device__ int counted;

__global__ void factor(float* out) {
    out[threadIdx.x] = factors[threadIdx.x];
    if (threadIdx.x == 0) counted += 10;
}

extern "C" int symbols(float* out, const float* two, int* facts) {
    void* address = 0;
    size_t size = 0;
    int error = cudaGetSymbolSize(&size, factors);
    if (error || (error = cudaGetSymbolAddress(&address, counted))) return error;
    facts[0] = (int)size;
    factor<<<1, 4>>>(out);
    if ((error = cudaMemcpyToSymbol(factors, two, 8, 4))) return error;
    factor<<<1, 4>>>(out + 4);
    if ((error = cudaMemcpyFromSymbolAsync(facts + 1, counted, 4, 0, cudaMemcpyDeviceToHost, 0))) return error;
    return cudaMemcpy(facts + 2, address, 4, cudaMemcpyDeviceToHost);
}

extern "C" int misplaced(int what) {
    static float host;
    float data[8] = {};
    return what ? cudaMemcpyToSymbol(factors, data, 20) : cudaMemcpyToSymbol(host, data, 4);
}

extern "C" int wanting(int what) {
    if (what == 0) {
        void* multicast = 0;
        cudaDriverEntryPointQueryResult found;
        return cudaGetDriverEntryPointByVersion("cuMulticastCreate", &multicast, 12000, cudaEnableDefault, &found);
    }
    if (what == 1) return cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 300000);
    return cudaSetDevice(3);
}
"""

LINE_OF_SCALE: Final = 1 + SCALE[: SCALE.index("data[i] *= by")].count("\n")


def library(source: str, folder: Path, *options: str, name: str = "plain") -> Path:
    """Build a shared library of a CUDA source."""
    file = folder / f"{name}.cu"
    file.write_text(source, encoding="utf-8")
    extension = Extension(name=name, sources=(file,), nvcc=options, torch=False)
    return build(extension, compilers.find(cuda=True), folder / f"{name}-built")[0]


def refusal(source: str, folder: Path) -> HostSideError:
    """Return why a library is not built."""
    with pytest.raises(HostSideError) as raised:
        library(source, folder, name="refused")
    return raised.value


# A module of Python's own headers, because torch's take minutes.
FILL = r'''CPP = r"""
#include <Python.h>
extern "C" int fill(unsigned long long c, int count);
static PyObject* run(PyObject*, PyObject* args) {
    unsigned long long c; int count;
    if (!PyArg_ParseTuple(args, "Ki", &c, &count)) return nullptr;
    return PyLong_FromLong(fill(c, count));
}
static PyMethodDef methods[] = {{"run", run, METH_VARARGS, "fill"}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "filler", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_filler() { return PyModule_Create(&module); }
"""
'''
