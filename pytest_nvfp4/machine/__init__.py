"""The machine's side of the trust line: it executes what a kernel's process requests, on memory of its own.

The kernel's process holds handles (addresses) and sends requests; the machine validates each one, executes it and
replies. Nothing that crosses is evaluated, unpickled or imported.

- ``wire``: frames on a socket, read strictly.
- ``requests``: an executed request as its observers see it.
- ``values``: arguments and results of torch's operators as data.
- ``operators``: execution of torch's operators on device memory; ``half_product``, ``scaled_mm``,
  ``scaled_grouped_mm``: products that torch's CPU backend lacks or computes in another order; ``torch_effects``: the
  memory that an operator reads and writes.
- ``blocks``: the device memory that the kernel's process holds.
- ``modules``: kernels that it has loaded, and the limits of their launches.
- ``server``: the table of requests; ``fields``: their fields, read by type and range.
"""
