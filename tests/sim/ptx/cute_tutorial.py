# SPDX-License-Identifier: Apache-2.0
"""Turns CUTLASS's CuTe tutorial sgemm_sm80.cu into kernels that NVRTC compiles.

Nothing of the tutorial is kept here: its text is read from the installed nvidia-cutlass package when the tests run.

The device template stays as it is (only __global__ becomes __device__); each host function's set-up of layouts becomes
the prologue of an entry, which then calls the template where the host code launches it.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variant:
    """One set-up function of the tutorial and the element type to run it with."""

    name: str
    """Entry name."""
    element: str
    """C++ element type of A, B and C."""
    marker: str
    """Comment that precedes the set-up function in the tutorial."""


HGEMM_TN = Variant("hgemm_tn", "cute::half_t", "// Setup params for a TN HGEMM")
SGEMM_NT = Variant("sgemm_nt", "float", "// Setup params for a NT GEMM")
SGEMM_TN = Variant("sgemm_tn", "float", "// Setup params for a TN GEMM")
VARIANTS = (HGEMM_TN, SGEMM_NT, SGEMM_TN)


def tutorial_text() -> str:
    """The tutorial's source."""
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None and spec.submodule_search_locations, "nvidia-cutlass is not installed"
    root = Path(next(iter(spec.submodule_search_locations)))
    return (root / "source" / "examples" / "cute" / "tutorial" / "sgemm_sm80.cu").read_text()


def source(variants: tuple[Variant, ...] = VARIANTS) -> str:
    """CUDA source with one entry per variant, and one more, NAME_info, that writes shared bytes and threads."""
    text = tutorial_text()
    start = text.index("template <class ElementA,")
    end = text.index("template <class Alpha, class Beta>\nvoid\ngemm_nt(")
    device, count = re.subn(
        r"__global__ static\s+__launch_bounds__\([^\n]*\)\s+void", "__device__ void", text[start:end]
    )
    assert count == 1, "the tutorial's kernel looks different: adapt this extraction"
    return "\n".join(["#include <cute/tensor.hpp>", device, *(_entry(text, variant) for variant in variants)])


def _entry(text: str, variant: Variant) -> str:
    function = text[text.index(variant.marker) :]
    setup = function[function.index("using namespace cute;") : function.index("int smem_size")]
    atoms = ("s2r_atom_A", "s2r_atom_B")
    if atoms[0] not in setup:  # these variants name the atom in the launch
        atoms = ("Copy_Atom<AutoVectorizingCopy, TA>{}", "Copy_Atom<AutoVectorizingCopy, TB>{}")
    return f"""
namespace {variant.name}_setup {{ using TA = {variant.element}; using TB = TA; using TC = TA; }}
extern "C" __global__ void {variant.name}(int m, int n, int k, float alpha_value, {variant.element} const* A, int ldA,
                                          {variant.element} const* B, int ldB, float beta_value,
                                          {variant.element}* C, int ldC) {{
  using namespace {variant.name}_setup;
  TC alpha(alpha_value), beta(beta_value);
  {setup}
  gemm_device(prob_shape, cta_tiler, A, dA, sA, copyA, {atoms[0]}, B, dB, sB, copyB, {atoms[1]},
              C, dC, sC, mmaC, alpha, beta);
}}
extern "C" __global__ void {variant.name}_info(int* out) {{
  using namespace {variant.name}_setup;
  int m = 0, n = 0, k = 0, ldA = 0, ldB = 0, ldC = 0;
  {setup}
  out[0] = int(sizeof(SharedStorage<TA, TB, decltype(sA), decltype(sB)>));
  out[1] = int(size(mmaC));
  out[2] = int(size(bM)); out[3] = int(size(bN)); out[4] = int(size(bK));
}}
"""
