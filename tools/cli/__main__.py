# SPDX-License-Identifier: Apache-2.0
"""`python -m attnsmith.tools.cli`: the `attnsmith` command where its script is not on PATH."""

from attnsmith.tools.cli import main

if __name__ == "__main__":
    main(prog_name="attnsmith")
