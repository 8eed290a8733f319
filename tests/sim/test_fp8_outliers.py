# SPDX-License-Identifier: Apache-2.0
"""Outliers through the FP8 kernel on a simulated H100: incoherent processing at least halves the error."""

from __future__ import annotations

import attnsmith
import pytest
import torch
from attnsmith.codegen.render import has_template
from attnsmith.codegen.spec import Arch, Op

from tests.fp8_outliers import outlier_errors

pytestmark = pytest.mark.skipif(not has_template(Op.FWD, Arch.SM90), reason="no SM90 forward template yet")


def test_incoherent_processing_halves_the_error_of_outliers() -> None:
    with attnsmith.simulate("h100"), attnsmith.record_launches() as launches:
        errors = outlier_errors(lambda quantized: attnsmith.flash_attn_func(**quantized), torch.float8_e4m3fn)
    assert launches and all("sm90_e4m3" in launch.kernel for launch in launches)
    assert errors.gain >= 2.0, errors
