# SPDX-License-Identifier: Apache-2.0
"""Makes slow first-time work visible: one line per step on stderr, unless the program configured logging itself.

Not responsible for what is reported: builders log to the logger `attnsmith`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def visible_progress() -> Iterator[None]:
    """Inside, INFO records of the logger `attnsmith` appear on stderr; where a handler exists already, it is used."""
    logger = logging.getLogger("attnsmith")
    if logger.handlers or logging.getLogger().handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("attnsmith: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
