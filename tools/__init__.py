# SPDX-License-Identifier: Apache-2.0
"""The command line, what its commands do, and the PTX simulator. Nothing here is needed to call attention on a GPU."""
