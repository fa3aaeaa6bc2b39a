"""Programs that are not yet repelled, each with the reason: their tests turn red when they are."""

from __future__ import annotations

_ELSEWHERE = "who computed C is not judged where the kernel shares a process with the simulator"
_JUDGE = "the inputs are in the kernel's process"
_FORGING = "only the identity of functions is compared"

OPEN: dict[str, str] = {
    "elsewhere/addresses_carry_c": _ELSEWHERE,
    "elsewhere/child_process_computes": _ELSEWHERE,
    "elsewhere/copy_from_numpy": _ELSEWHERE,
    "elsewhere/copy_kernel_launders": _ELSEWHERE,
    "elsewhere/driver_memcpy": _ELSEWHERE,
    "elsewhere/dummy_multiply_adds": _ELSEWHERE,
    "elsewhere/dummy_multiply_adds_in_c": _ELSEWHERE,
    "elsewhere/global_scale_from_host": _ELSEWHERE,
    "elsewhere/graph_replays_copy": _ELSEWHERE,
    "elsewhere/host_decides_rows": _ELSEWHERE,
    "elsewhere/immediates_carry_c": _ELSEWHERE,
    "elsewhere/own_tensor_from_numpy": _ELSEWHERE,
    "elsewhere/parameters_carry_c": _ELSEWHERE,
    "elsewhere/pointer_write": _ELSEWHERE,
    "elsewhere/reads_by_dlpack": _ELSEWHERE,
    "elsewhere/reads_by_item": _ELSEWHERE,
    "elsewhere/reads_by_repr": _ELSEWHERE,
    "elsewhere/thread_fills": _ELSEWHERE,
    "elsewhere/torch_convolution": _ELSEWHERE,
    "elsewhere/torch_matmul": _ELSEWHERE,
    "elsewhere/torch_matmul_laundered": _ELSEWHERE,
    "elsewhere/torch_products": _ELSEWHERE,
    "judge/calls_the_oracle_by_its_code": _JUDGE,
    "judge/frames_by_eval": _JUDGE,
    "judge/frames_by_exec_with_forged_name": _JUDGE,
    "judge/frames_by_generator": _JUDGE,
    "judge/frames_by_signal": _JUDGE,
    "judge/frames_by_traceback": _JUDGE,
    "judge/frames_of_other_thread": _JUDGE,
    "judge/heap_by_map": _JUDGE,
    "judge/heap_by_subclasses": _JUDGE,
    "forging/builtins_by_partial": _FORGING,
    "forging/bytes_of_a_constant": _FORGING,
    "forging/class_of_a_module": _FORGING,
    "forging/closure_cells": _FORGING,
    "forging/code_for_a_moment": _FORGING,
    "forging/code_of_the_guard": _FORGING,
    "forging/code_of_the_sender": _FORGING,
    "forging/slot_of_a_type": _FORGING,
    "forging/torch_dispatcher": _FORGING,
    "forging/numpy_functions": _FORGING,
    "wall/changes_modes": "Landlock does not cover the attributes of files",
    "honest/returns_own_tensors": "a C that is not the given one counts as never written",
    "honest/scratch_copied": "a C that an operator copied counts as never written",
}
