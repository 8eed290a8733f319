# SPDX-License-Identifier: Apache-2.0
"""What every test may use: the --update-golden flag. Fixtures of one area live in that area's folder."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code renders now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
