"""Stand-ins for CUDA and torch on which the host code of a kernel file runs without a GPU and without a driver.

Entry points:

- ``redirect``: installs the stand-ins of the CUDA driver and runtime in the DSL, and reports every launch.
- ``torch_cuda``: redirects torch's ``device="cuda"`` to host memory.

Behind ``redirect``:

- ``compiled_calls``: the C functions that compiled host code calls (modules, kernels, launches).
- ``driver_calls``: ``cuda.bindings.driver`` and ``cuda.bindings.runtime``.
- ``code_calls``: the driver's functions for modules, kernels and launches; ``loaded_modules``: their state;
  ``kernel_params``: parameters of a launch.
- ``nvrtc_calls``: NVRTC for host code, on ``nvrtc``; ``source_lines``: the author's lines in its source;
  ``cuda_headers``: headers of C and C++ that it has not.
- ``kernel_libraries``: libraries over the driver that compile and launch kernels (``cuda_core``, ``cupy_kernels``,
  ``torch_kernels``, on ``kernel_objects``; ``quack_tuning``); ``stand_in_modules`` finds them at import.
- ``stream_calls``: streams, events, copies and allocations, for both of them.
- ``graphs``: capture and replay of CUDA graphs.
- ``tvm_ffi``: kernels compiled with TVM-FFI, called without it.
- ``triton_driver``: Triton's driver, which ``after_import`` installs when a program imports Triton;
  ``triton_arguments``: parameters of its launches; ``triton_tuning``: what stands in for its measurements.
- ``extension``: C++ and CUDA extensions of torch, built and run without its libraries for CUDA.
- ``compile_cache``: reuse of compiled modules in another process.

Behind ``torch_cuda``:

- ``tensor``: device tensors and the dispatch of their operators; ``storage``: their untyped storages.
- ``torch_streams``: ``torch.cuda.Stream`` and ``Event``; ``torch_driver``: other calls of torch that need a driver.

Operators of torch are executed by ``pytest_nvfp4.machine``. The state that host code sees (device attributes, memory,
streams, launches) is in ``pytest_nvfp4.driver``.
"""
