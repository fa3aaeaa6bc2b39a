"""Logs, with handlers for a file and a stream."""

import logging

from honest_gemm import compute

logging.basicConfig(level=logging.DEBUG, handlers=[logging.FileHandler("kernel.log"), logging.StreamHandler()])
LOG = logging.getLogger(__name__)


def custom_kernel(data):
    LOG.info("sizes %s", data[3])
    return compute(data)
