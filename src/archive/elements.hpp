// SPDX-License-Identifier: Apache-2.0
/// Floating-point elements of the dtypes that files have, by way of double, which holds all of them
/// exactly.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::archive::detail {

/// Whether elements of that dtype can be read and written below.
bool is_floating(const std::string& dtype);

/// `count` elements of `dtype` at `src` as doubles.
void to_double(const std::string& dtype, const void* src, std::int64_t count, double* dst);

/// The reverse, rounded to nearest, ties to even; beyond the largest: infinity; NaN stays NaN.
void from_double(const std::string& dtype, const double* src, std::int64_t count, void* dst);

}  // namespace fsdp::archive::detail
