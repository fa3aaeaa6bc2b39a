"""Who wrote each byte of device memory, and what it descends from: inputs, the host, launches, operators of torch."""
