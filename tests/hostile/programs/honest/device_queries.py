"""Asks the device what it is."""

import torch
from honest_gemm import compute

assert torch.cuda.is_available()
assert torch.cuda.get_device_capability()[0] >= 9
assert torch.cuda.get_device_properties(0).multi_processor_count > 0
assert torch.cuda.current_device() == 0

custom_kernel = compute
