// SPDX-License-Identifier: Apache-2.0
// One instruction of an entry's body, from its guard to its semicolon. Register names are resolved through the open
// scopes, every other name is left to the decoder. Not responsible for labels and directives: parser.cpp has them.
#pragma once

#include "ast.hpp"
#include "register_scopes.hpp"
#include "token_cursor.hpp"

namespace ptxsim {

RawInst parse_instruction(TokenCursor& in, const RegisterScopes& scopes);  // throws SimError "parse"

}  // namespace ptxsim
