"""The 5th-generation tensor core: TMEM, its allocation, copies into it, ``tcgen05.mma`` and the accumulators."""
