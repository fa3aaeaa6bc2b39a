"""Stand-ins for CUDA and torch on which the host code of a kernel file runs without a GPU and without a driver.

Entry points:

- ``redirect``: installs the stand-ins of the CUDA driver and runtime in the DSL, and reports every launch.
- ``torch_cuda``: redirects torch's ``device="cuda"`` to host memory.

Behind ``redirect``:

- ``compiled_calls``: the C functions that compiled host code calls (modules, kernels, launches).
- ``driver_calls``: ``cuda.bindings.driver`` and ``cuda.bindings.runtime``.
- ``stream_calls``: streams, events, copies and allocations, for both of them.
- ``graphs``: capture and replay of CUDA graphs.
- ``tvm_ffi``: kernels compiled with TVM-FFI, called without it.
- ``compile_cache``: reuse of compiled modules in another process.

Behind ``torch_cuda``:

- ``tensor``: device tensors and the dispatch of their operators; ``storage``: their untyped storages.
- ``torch_streams``: ``torch.cuda.Stream`` and ``Event``; ``torch_driver``: other calls of torch that need a driver.

Operators of torch are executed by ``pytest_nvfp4.machine``. The state that host code sees (device attributes, memory,
streams, launches) is in ``pytest_nvfp4.driver``.
"""
