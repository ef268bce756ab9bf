// SPDX-License-Identifier: Apache-2.0
/// fsdp::Options out of the dictionary that python/fsdp/_options.py makes. Units come as paths.
#pragma once

#include <pybind11/pybind11.h>

#include "fsdp/engine/options.hpp"

namespace fsdp::python {

/// @throws Error kInvalidArgument for a word that an option does not know
Options options_of(const pybind11::dict& given);

}  // namespace fsdp::python
