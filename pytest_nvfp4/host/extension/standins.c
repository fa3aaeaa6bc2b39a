/* Definitions of the functions of the CUDA runtime and driver, and of torch's library for CUDA, that an extension calls.
 *
 * They are linked into the extension, before any library, so that its constructors use them already. Each calls an entry
 * of a table, whose address the environment holds; without one (another process), each returns an error.
 * NVFP4_FORWARDED lists functions whose arguments are passed on as they are.
 *
 * Functions of torch are defined by their mangled names: torch's headers would take longer to compile than this file.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNKNOWN = 999, CUDA = 1, COOPERATIVE = 2 };

typedef struct { uint32_t x, y, z; } Dim3;
typedef struct { Dim3 grid, block; size_t dynamic_smem; void *stream; void *attributes; uint32_t count; } Config;
typedef struct { uint32_t id, padding; union { int32_t value; char bytes[64]; } value; } Attribute;
typedef struct { int8_t type, index; int64_t id; } Stream;
typedef int64_t (*Entry)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

static Entry *table;

__attribute__((constructor(101))) static void find_table(void) {
    const char *text = getenv("NVFP4_EXTENSION_CALLS");
    long process = 0;
    unsigned long long address = 0;
    if (text && sscanf(text, "%ld:%llx", &process, &address) == 2 && process == (long)getpid())
        table = (Entry *)(uintptr_t)address;
}

static int64_t call(int entry, void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j,
                    void *k, void *l) {
    return table && table[entry] ? table[entry](a, b, c, d, e, f, g, h, i, j, k, l) : UNKNOWN;
}

#define CALL3(entry, a, b, c) \
    call(entry, (void *)(a), (void *)(b), (void *)(c), 0, 0, 0, 0, 0, 0, 0, 0, 0)

#define FORWARD(entry, name)                                                                                         \
    int64_t name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k, \
                 void *l) {                                                                                          \
        return call(entry, a, b, c, d, e, f, g, h, i, j, k, l);                                                      \
    }
NVFP4_FORWARDED

/* ---- what nvcc's host code calls -------------------------------------------------------------------------------- */

static _Thread_local struct { Config config; } pushed[16];
static _Thread_local unsigned depth;

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t dynamic_smem, void *stream) {
    if (depth == sizeof pushed / sizeof *pushed) return UNKNOWN;
    pushed[depth++].config = (Config){grid, block, dynamic_smem, stream, 0, 0};
    return 0;
}

int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *dynamic_smem, void **stream) {
    if (!depth) return UNKNOWN;
    const Config *config = &pushed[--depth].config;
    *grid = config->grid, *block = config->block, *dynamic_smem = config->dynamic_smem, *stream = config->stream;
    return 0;
}

int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return 0; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { (void)handle; return 1; }

int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t dynamic_smem, void *stream) {
    Config config = {grid, block, dynamic_smem, stream, 0, 0};
    return (int)CALL3(NVFP4_LAUNCH, &config, function, arguments);
}

int __cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t dynamic_smem,
                       void *stream) {
    return cudaLaunchKernel(function, grid, block, arguments, dynamic_smem, stream);
}

int cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t dynamic_smem,
                                void *stream) {
    Attribute cooperative = {COOPERATIVE, 0, {1}};
    Config config = {grid, block, dynamic_smem, stream, &cooperative, 1};
    return (int)CALL3(NVFP4_LAUNCH, &config, function, arguments);
}

int cudaMallocHost(void **to, size_t size) { return (*to = malloc(size ? size : 1)) ? 0 : 2; }
int cudaHostAlloc(void **to, size_t size, unsigned flags) { (void)flags; return cudaMallocHost(to, size); }
int cudaFreeHost(void *memory) { free(memory); return 0; }

/* ---- torch's functions for the device and its streams ------------------------------------------------------------ */

int8_t _ZN3c104cuda12device_countEv(void) { return 1; }
int8_t _ZN3c104cuda28device_count_ensure_non_zeroEv(void) { return 1; }
int8_t _ZN3c104cuda14current_deviceEv(void) { return 0; }
void _ZN3c104cuda10set_deviceEa(int8_t device) { CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); }
void _ZN3c104cuda10set_deviceEab(int8_t device) { CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); }
void _ZN3c104cuda18device_synchronizeEv(void) { CALL3(NVFP4_SYNCHRONIZE, 0, 0, 0); }
void _ZN3c104cuda21warn_or_error_on_syncEv(void) {}
int _ZN3c104cuda14GetDeviceCountEPi(int *count) { *count = 1; return 0; }
int _ZN3c104cuda9GetDeviceEPa(int8_t *device) { *device = 0; return 0; }
int _ZN3c104cuda9SetDeviceEa(int8_t device) { return (int)CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); }
int _ZN3c104cuda9SetDeviceEab(int8_t device) { return (int)CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); }
int _ZN3c104cuda14MaybeSetDeviceEa(int8_t device) { return (int)CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); }
int8_t _ZN3c104cuda14ExchangeDeviceEa(int8_t device) { CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); return 0; }
int8_t _ZN3c104cuda19MaybeExchangeDeviceEa(int8_t device) { CALL3(NVFP4_SET_DEVICE, (intptr_t)device, 0, 0); return 0; }
void _ZN3c104cuda15SetTargetDeviceEv(void) {}
char _ZN3c104cuda17hasPrimaryContextEa(int8_t device) { (void)device; return 1; }
int _ZN2at4cuda9warp_sizeEv(void) { return 32; }

/* An error has been kept already, and is raised once the extension returns; any other one is kept here. */
#define CHECK(name, ...)                                                                        \
    void name(int error, const char *file, const char *function, unsigned line, ##__VA_ARGS__) { \
        (void)function;                                                                         \
        if (error) CALL3(NVFP4_CHECK, (intptr_t)error, file, (intptr_t)line);                    \
    }
CHECK(_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb, char assertions)
CHECK(_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib, char assertions)
CHECK(_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE, char assertions, void *log)
void _ZN3c104cuda19CUDAErrorLogCaptureC1Ev(void *log) { (void)log; }
void _ZN3c104cuda19CUDAErrorLogCaptureC2Ev(void *log) { (void)log; }

static Stream stream_of(int64_t handle) { return (Stream){CUDA, 0, handle}; }

Stream _ZN3c104cuda20getCurrentCUDAStreamEa(int8_t device) { (void)device; return stream_of(CALL3(NVFP4_CURRENT, 0, 0, 0)); }
Stream _ZN3c104cuda20getDefaultCUDAStreamEa(int8_t device) { (void)device; return stream_of(0); }
Stream _ZN3c104cuda17getStreamFromPoolEba(char high, int8_t device) {
    (void)high, (void)device;
    return stream_of(CALL3(NVFP4_NEW_STREAM, 0, 0, 0));
}
Stream _ZN3c104cuda17getStreamFromPoolEia(int priority, int8_t device) {
    (void)priority, (void)device;
    return stream_of(CALL3(NVFP4_NEW_STREAM, 0, 0, 0));
}
Stream _ZN3c104cuda21getStreamFromExternalEP11CUstream_sta(void *stream, int8_t device) {
    (void)device;
    return stream_of((int64_t)stream);
}
void _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE(Stream stream) { CALL3(NVFP4_SET_CURRENT, stream.id, 0, 0); }
void *_ZNK3c104cuda10CUDAStream6streamEv(const Stream *stream) { return (void *)stream->id; }
char _ZNK3c104cuda10CUDAStream5queryEv(const Stream *stream) { return !CALL3(NVFP4_SYNCHRONIZE_STREAM, stream->id, 0, 0); }
void _ZNK3c104cuda10CUDAStream11synchronizeEv(const Stream *stream) { CALL3(NVFP4_SYNCHRONIZE_STREAM, stream->id, 0, 0); }

/* Nothing calls it, but the table of virtual functions of torch's guards has it, and torch's own one asks torch's
 * allocator. That is then in no code that is used, and left out of the library (see symbols.HIDDEN). */
void _ZNK3c104cuda4impl13CUDAGuardImpl21recordDataPtrOnStreamERKNS_7DataPtrERKNS_6StreamE(
    const void *guard, const void *pointer, const void *stream) {
    (void)guard, (void)pointer, (void)stream;
}

/* ---- functions of the driver by name ----------------------------------------------------------------------------- */

static const struct { const char *name; void *function; } driver[] = {NVFP4_DRIVER {0, 0}};

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    (void)flags;
    *function = 0;
    for (int i = 0; driver[i].name; i++)
        if (!strcmp(driver[i].name, name)) *function = driver[i].function;
    if (status) *status = *function ? 0 : 1; /* cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound */
    return *function ? 0 : (int)CALL3(NVFP4_NOT_FOUND, name, 0, 0);
}

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    (void)version;
    return cudaGetDriverEntryPoint(name, function, flags, status);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version;
    return cudaGetDriverEntryPoint(name, function, flags, status);
}
