"""The operators of torch that a kernel's process may request; those of its host code, and no others.

An operator runs in the process that holds device memory and the simulator. It is listed only if its CPU code checks
every size and index that it gets, and writes no operand that its schema does not declare as written: ``max_unpool2d``
and the backward passes of pooling store to unchecked indices, ``native_batch_norm`` changes its running statistics
unseen and checks no sizes of them, factorisations with pivots and transforms of a claimed length read too far.

A name covers its overloads and, with ``_`` behind it, its in-place form.
"""

from __future__ import annotations

from typing import Final

_CREATED: Final = """
    arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye full full_like
    hamming_window hann_window kaiser_window linspace logspace new_empty new_empty_strided new_full new_ones new_zeros
    ones ones_like scalar_tensor tril_indices triu_indices zeros zeros_like _efficientzerotensor
    bernoulli binomial cauchy dropout exponential geometric log_normal multinomial native_dropout normal
    normal_functional poisson rand rand_like randint randint_like randn randn_like random randperm uniform
    _fused_dropout _standard_gamma _sample_dirichlet
"""
_MOVED: Final = """
    _chunk_cat _conj _conj_copy _conj_physical _neg_view _neg_view_copy _pad_circular _pad_enum _reshape_alias
    _reshape_alias_copy _reshape_copy _stack _to_copy _unsafe_view adjoint alias alias_copy as_strided as_strided_copy
    as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cartesian_prod cat
    channel_shuffle chunk clone column_stack combinations complex concat concatenate conj conj_physical constant_pad_nd
    contiguous copy detach detach_copy diag diag_embed diagflat diagonal diagonal_copy diagonal_scatter dsplit dstack
    expand expand_as expand_copy fill fill_diagonal flatten flip fliplr flipud hsplit hstack imag lift lift_fresh
    lift_fresh_copy masked_fill masked_scatter masked_select meshgrid moveaxis movedim narrow narrow_copy
    native_channel_shuffle numpy_T mH mT matrix_H pad permute permute_copy pixel_shuffle pixel_unshuffle polar ravel
    real reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg roll rot90 row_stack select
    select_copy select_scatter slice slice_copy slice_scatter split split_copy split_with_sizes split_with_sizes_copy
    squeeze squeeze_copy stack swapaxes swapdims t t_copy tensor_split tile to transpose transpose_copy tril triu
    type_as unbind unbind_copy unflatten unfold unfold_copy unsqueeze unsqueeze_copy vander view view_as
    view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack where zero im2col col2im
    _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short cuda cpu
"""
_LOOKED_UP: Final = """
    _index_put_impl argwhere bincount bucketize embedding gather histc index index_add index_copy index_fill index_put
    index_reduce index_select isin nonzero nonzero_numpy nonzero_static one_hot put scatter scatter_add scatter_reduce
    searchsorted take take_along_dim
"""
_ELEMENTWISE: Final = """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__
    _add_relu _prelu_kernel _saturate_weight_to_fp16
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
    clamp clamp_max clamp_min clip copysign cos cosh deg2rad digamma div divide elu eq erf erfc erfinv exp exp2 expm1
    fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu greater greater_equal gt hardshrink
    hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isclose isfinite isinf isnan isneginf isposinf
    isreal lcm ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish mul multiply
    mvlgamma nan_to_num ne neg negative nextafter not_equal polygamma positive pow prelu rad2deg reciprocal relu relu6
    remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square sub
    subtract tan tanh threshold true_divide trunc xlogy
"""
_COMBINED: Final = """
    _addmm_activation _aminmax _cdist_forward _convolution _convolution_mode _euclidean_dist _fused_rms_norm
    _grouped_mm _int_mm _is_all_true _is_any_true _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet
    _linalg_solve_ex _linalg_svd _local_scalar_dense _log_softmax _logcumsumexp _masked_softmax _safe_softmax
    _scaled_dot_product_attention_math _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2 _softmax
    _unique _unique2 addbmm addmm addmv addr all allclose amax amin aminmax any argmax argmin argsort avg_pool1d
    avg_pool2d avg_pool3d baddbmm
    bilinear binary_cross_entropy binary_cross_entropy_with_logits bmm cdist chain_matmul cholesky_inverse
    cholesky_solve conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution corrcoef
    cosine_similarity count_nonzero cov cross cross_entropy_loss cummax cummin cumprod cumsum det diff dist dot einsum
    equal frobenius_norm ger group_norm huber_loss inner inverse is_nonzero item kl_div kron kthvalue l1_loss
    layer_norm linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_eig linalg_eigh
    linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_lu
    linalg_lu_factor linalg_lu_factor_ex linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power
    linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot
    linalg_vector_norm linear log_softmax logcumsumexp logdet logsumexp logsumexp matmul matrix_exp matrix_power max
    max_pool1d max_pool2d max_pool2d_with_indices max_pool3d mean median min mm mode mse_loss msort
    mv nanmean nanmedian nansum native_group_norm native_layer_norm nll_loss nll_loss_forward nll_loss_nd norm
    nuclear_norm outer pairwise_distance pdist _pdist_forward prod renorm rms_norm scaled_dot_product_attention
    slogdet smooth_l1_loss softmax sort std std_mean sum sum_to_size svd tensordot topk trace
    trapezoid trapz triangular_solve unique_consecutive unique_dim unique_dim_consecutive var var_mean vdot
    cumulative_trapezoid quantile nanquantile histogram
"""
_ASKED: Final = """
    _shape_as_tensor can_cast dim element_size get_device is_coalesced is_complex is_conj is_contiguous
    is_floating_point is_inference is_leaf is_neg is_pinned is_same_size is_set_to is_signed numel promote_types
    result_type size stride sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride
    _has_compatible_shallow_copy_type _debug_has_internal_overlap
    requires_grad
"""
_KNOWN: Final = frozenset(f"{_CREATED} {_MOVED} {_LOOKED_UP} {_ELEMENTWISE} {_COMBINED} {_ASKED}".split())
_PREFIXES: Final = ("special_", "_foreach_")


def is_known(name: str) -> bool:
    """Return whether an operator, without its namespace, may be requested."""
    return name in _KNOWN or name.removesuffix("_") in _KNOWN or name.startswith(_PREFIXES)
