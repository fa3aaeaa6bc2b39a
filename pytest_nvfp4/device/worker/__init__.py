"""The process that runs a job: it holds the kernel, the device and nothing else that matters."""
