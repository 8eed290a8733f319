# SPDX-License-Identifier: Apache-2.0
"""From a spec to compiled kernels, without torch at import and without a GPU ever.

spec -> rules, resources -> tiles, registry -> render -> compile (build, cache, digest, toolchain) -> dispatch. Import
the module that you need: this one imports nothing, so that `attnsmith --help` stays fast.
"""
