# SPDX-License-Identifier: Apache-2.0
"""Outliers through the FP8 kernel on a simulated H100: incoherent processing at least halves the error.

Also what a simulated GPU without FP8 says.
"""

from __future__ import annotations

import attnsmith
import pytest
import torch
from attnsmith.codegen.render import has_template
from attnsmith.codegen.spec import Arch, Op

from tests.fp8_outliers import outlier_errors


@pytest.mark.skipif(not has_template(Op.FWD, Arch.SM90), reason="there is no SM90 forward template")
def test_incoherent_processing_halves_the_error_of_outliers() -> None:
    with attnsmith.simulate("h100"), attnsmith.record_launches() as launches:
        errors = outlier_errors(lambda quantized: attnsmith.flash_attn_func(**quantized), torch.float8_e4m3fn)
    assert launches and all("sm90_e4m3" in launch.kernel for launch in launches)
    assert errors.gain >= 2.0, errors


def test_a_gpu_without_fp8_says_what_has_it() -> None:
    x = torch.ones(1, 4, 1, 64).to(torch.float8_e4m3fn)
    with attnsmith.simulate("a100"), pytest.raises(NotImplementedError, match=r"a100.*SM90 \(H100"):
        attnsmith.flash_attn_func(x, x, x)
