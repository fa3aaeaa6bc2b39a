/* The properties of the device, as the version of CUDA with which an extension is compiled lays them out. */
#include <cuda_runtime_api.h>
#include <string.h>

static int attribute(enum cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, 0);
    return value;
}

void nvfp4_device_name(char *name, size_t size, size_t *memory); /* one of the functions that are passed on */

static void fill(struct cudaDeviceProp *to) {
    size_t memory = 0;
    memset(to, 0, sizeof *to);
    nvfp4_device_name(to->name, sizeof to->name, &memory);
    to->totalGlobalMem = memory;
    to->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    to->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    to->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    to->reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    to->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    to->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    to->warpSize = attribute(cudaDevAttrWarpSize);
    to->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    to->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    to->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    to->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
    to->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
    to->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
    to->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
    to->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
    to->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
    to->totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
    to->major = attribute(cudaDevAttrComputeCapabilityMajor);
    to->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    to->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    to->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    to->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
    to->concurrentKernels = attribute(cudaDevAttrConcurrentKernels);
    to->unifiedAddressing = attribute(cudaDevAttrUnifiedAddressing);
    to->cooperativeLaunch = attribute(cudaDevAttrCooperativeLaunch);
    to->managedMemory = attribute(cudaDevAttrManagedMemory);
    to->canMapHostMemory = attribute(cudaDevAttrCanMapHostMemory);
    to->ECCEnabled = attribute(cudaDevAttrEccEnabled);
#if CUDART_VERSION < 13000
    to->clockRate = attribute(cudaDevAttrClockRate);
    to->memoryClockRate = attribute(cudaDevAttrMemoryClockRate);
#endif
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *to, int device) {
    (void)device;
    fill(to);
    return cudaSuccess;
}

struct cudaDeviceProp *_ZN2at4cuda26getCurrentDevicePropertiesEv(void) {
    static struct cudaDeviceProp properties;
    fill(&properties);
    return &properties;
}

struct cudaDeviceProp *_ZN2at4cuda19getDevicePropertiesEa(signed char device) {
    (void)device;
    return _ZN2at4cuda26getCurrentDevicePropertiesEv();
}
