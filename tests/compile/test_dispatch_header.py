# SPDX-License-Identifier: Apache-2.0
"""The rendered dispatch header under a real C++ compiler: the same packed keys as Python, for every key there is."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from attnsmith.codegen.dispatch import head_dim_bucket, pack_key, render_dispatch_header, serving_head_dims
from attnsmith.codegen.families import DTYPES, HEAD_DIMS
from attnsmith.codegen.spec import Arch, DType, Mask, Op, ProblemKey

KEYS = [
    ProblemKey(op=op, arch=arch, dtype=dtype, head_dim=d, head_dim_v=dv, mask=mask, pads_head_dim=pads)
    for op, arch, dtype, d, dv, mask, pads in product(Op, Arch, DType, HEAD_DIMS, HEAD_DIMS, Mask, (False, True))
]
KEYS += [
    replace(key, out_dtype=out_dtype, v_is_col_major=v_is_col_major, packs_gqa=packs_gqa)
    for key in KEYS[:1]
    for out_dtype, v_is_col_major, packs_gqa in product(DType, (False, True), (False, True))
]


def assertion(key: ProblemKey) -> str:
    """A static_assert that packing and unpacking `key` in C++ gives Python's number."""
    values = ", ".join(
        [
            *(f"{type(e).__name__}::k{e.value.capitalize()}" for e in (key.op, key.arch, key.dtype)),
            str(key.head_dim),
            str(key.head_dim_v),
            f"Mask::k{key.mask.value.capitalize()}",
            str(key.pads_head_dim).lower(),
            f"DType::k{key.out_dtype.value.capitalize()}",
            str(key.v_is_col_major).lower(),
            str(key.packs_gqa).lower(),
        ]
    )
    packed = f"{pack_key(key)}ull"
    return f"static_assert(pack_key(ProblemKey{{{values}}}) == {packed} && pack_key(unpack_key({packed})) == {packed});"


def compile_text(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check `text` as C++17 beside the rendered header; compiles to nothing."""
    compiler = os.environ.get("CXX", "g++").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"needs a C++ compiler: {compiler[0]} was not found")
    (folder / "dispatch_table.inc").write_text(render_dispatch_header())
    (folder / "check.cpp").write_text(f'#include "dispatch_table.inc"\nnamespace attnsmith {{\n{text}\n}}\n')
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    return subprocess.run([*compiler, *flags, "check.cpp"], cwd=folder, capture_output=True, text=True)


def test_cpp_packs_every_key_as_python_does(tmp_path):
    result = compile_text("\n".join(assertion(key) for key in KEYS), tmp_path)
    assert result.returncode == 0, result.stderr[:2000]


def test_cpp_buckets_every_head_dim_as_python_does(tmp_path):
    lines = [f"static_assert(head_dim_bucket({d}) == {head_dim_bucket(d)});" for d in range(1, HEAD_DIMS[-1] + 1)]
    lines += ["static_assert(head_dim_bucket(0) == 0 && head_dim_bucket(257) == 0 && head_dim_bucket(-8) == 0);"]
    result = compile_text("\n".join(lines), tmp_path)
    assert result.returncode == 0, result.stderr[:2000]


def test_cpp_serves_every_head_dim_pair_as_python_does(tmp_path):
    lines = []
    for arch, d, dv in product(Arch, range(1, HEAD_DIMS[-1] + 1, 15), range(1, HEAD_DIMS[-1] + 1, 15)):
        for dtype in DTYPES[arch]:
            call = f"serving_head_dims(Arch::k{arch.value.capitalize()}, DType::k{dtype.value.capitalize()}, {d}, {dv})"
            pair = serving_head_dims(arch, dtype, d, dv)
            lines.append(f"static_assert({call}.head_dim == {pair[0]} && {call}.head_dim_v == {pair[1]});")
    for arguments in ("Sm90, DType::kFp16, 257, 64", "Sm90, DType::kFp16, 64, 0", "Sm80, DType::kE4m3, 64, 64"):
        lines.append(f"static_assert(serving_head_dims(Arch::k{arguments}).head_dim == 0);")
    result = compile_text("\n".join(lines), tmp_path)
    assert result.returncode == 0, result.stderr[:2000]


def test_a_wrong_number_would_be_noticed(tmp_path):
    wrong = assertion(KEYS[0]).replace(str(pack_key(KEYS[0])), str(pack_key(KEYS[0]) + 1))
    assert compile_text(wrong, tmp_path).returncode != 0
