"""C++ and CUDA extensions of torch (``torch.utils.cpp_extension``), built and run without a GPU.

- ``build``: compiles and links an extension with the user's compilers; ``compilers`` finds them, ``flags`` rewrites
  options; ``kept`` stores built extensions for another process with the same sources.
- ``standins.c``, ``properties.c``: definitions of the CUDA runtime's functions, linked into each extension, so that
  its calls arrive here and never in a CUDA library; ``symbols`` names what they do not define.
- ``runtime_calls``: what these functions do.
- ``operators``: what an extension registers with torch's dispatcher.
- ``side``: replaces the building step of ``torch.utils.cpp_extension``.

Only the extension's own code runs in the kernel's process; its launches are requests like those of any other host code.
"""
