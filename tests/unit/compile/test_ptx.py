# SPDX-License-Identifier: Apache-2.0
"""Rewrites of PTX text: unused variables go, used ones stay, each kernel stands alone."""

from __future__ import annotations

import pytest
from attnsmith.codegen.compile.ptx import split_kernels, strip_unreferenced_variables

PTX = """\
.version 9.0
.target sm_80
.address_size 64

\t// .globl\tfirst
.global .align 1 .u8 unused_flag;
.global .align 4 .u32 unused_value = 5;
.global .align 8 .b8 unused_array[16];
.const .align 4 .b8 unused_const[12] = {1, 2, 3};
.global .align 4 .u32 used = 7;
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.global .align 8 .u64 points_to_table[1] = {generic(table)};
.global .align 8 .u64 unused_pointer[1] = {generic(unused_value)};
.extern .shared .align 16 .b8 smem[];

.visible .entry first(
\t.param .u64 first_param_0
)
.maxntid 128
{
\t{
\tmov.u32 %r1, used;
\t}
\tld.global.u64 %rd1, [points_to_table];
\tret;
}
\t// .globl\tsecond
.visible .entry second()
{
\tmov.u32 %r1, smem;
\tret;
}
"""


def test_only_unreferenced_variables_go() -> None:
    stripped = strip_unreferenced_variables(PTX)
    assert "unused" not in stripped, "a variable that only an unused one refers to goes too"
    for kept in ("used = 7;", "table[4]", "points_to_table[1]", ".extern .shared", ".entry first", ".entry second"):
        assert kept in stripped
    assert strip_unreferenced_variables(stripped) == stripped


def test_each_kernel_stands_alone() -> None:
    parts = split_kernels(PTX)
    assert list(parts) == ["first", "second"]
    assert ".entry second" not in parts["first"] and ".entry first" not in parts["second"]
    assert "used = 7;" in parts["first"] and "used = 7;" not in parts["second"]
    for text in parts.values():
        assert text.startswith(".version 9.0\n.target sm_80") and ".extern .shared" in text
        assert text.count("{\n") == text.count("}\n")


def test_truncated_ptx_is_refused() -> None:
    with pytest.raises(ValueError, match="ends within an entry"):
        split_kernels(PTX[: PTX.index("ld.global")])
