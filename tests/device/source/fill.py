"""PTX of a kernel without host code."""


def fill(value: str) -> str:
    """The PTX of ``fill(p, value)``, in which each thread of one CTA stores a value of a 32-bit type at its index."""
    return f""".version 8.7
.target sm_100a
.address_size 64
.visible .entry fill(.param .u64 p, .param .{value} value)
{{
	.reg .b64 %rd<4>;
	.reg .b32 %r<3>;
	ld.param.u64 %rd1, [p];
	ld.param.b32 %r1, [value];
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd2, %r2, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ret;
}}
"""
