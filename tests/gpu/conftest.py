# SPDX-License-Identifier: Apache-2.0
"""Every test in this folder needs a CUDA GPU that a compile target serves; elsewhere it is skipped, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.tools.gpu_check import require_gpu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests `gpu`, and skip them where there is none."""
    try:
        require_gpu()
        reason = ""
    except AttnsmithError as error:
        reason = f"marker gpu: {error.got}"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def target() -> str:
    """The GPU's compile target."""
    return require_gpu()
