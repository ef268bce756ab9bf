// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/optim/muon.hpp"

namespace fsdp::optim {

std::int64_t newton_schulz_numel(const std::vector<std::int64_t>& sizes) {
  const std::int64_t small = std::min(sizes[0], sizes[1]), large = std::max(sizes[0], sizes[1]);
  return 2 * small * large + 2 * small * small;
}

void newton_schulz_(at::Tensor matrix, int iterations, const at::Tensor& workspace) {
  // Jordan's coefficients: steep at zero, so that few iterations do, at the price of singular
  // values that only come near 1.
  constexpr double kLinear = 3.4445, kCubic = -4.7750, kQuintic = 2.0315;
  constexpr double kEps = 1e-7;
  FSDP_CHECK(matrix.dim() == 2, ErrorCode::kInvalidArgument, "[newton_schulz_] the tensor has ",
             matrix.dim(), " dimensions, must have 2");
  if (matrix.numel() == 0) {
    return;
  }
  const at::Tensor flat_side = matrix.size(0) > matrix.size(1) ? matrix.t() : matrix;
  const std::int64_t rows = flat_side.size(0), columns = flat_side.size(1);
  std::int64_t used = 0;
  const auto take = [&](std::int64_t r, std::int64_t c) {
    const at::Tensor part = workspace.narrow(0, used, r * c).view({r, c});
    used += r * c;
    return part;
  };
  at::Tensor x = take(rows, columns), next = take(rows, columns);
  at::Tensor gram = take(rows, rows), polynomial = take(rows, rows);
  x.copy_(flat_side);
  x.div_(at::linalg_vector_norm(x).add_(kEps));
  for (int i = 0; i < iterations; ++i) {
    at::mm_out(gram, x, x.t());
    at::addmm_out(polynomial, gram, gram, gram, kCubic, kQuintic);
    at::addmm_out(next, x, polynomial, x, kLinear, 1);
    std::swap(x, next);
  }
  flat_side.copy_(x);
}

}  // namespace fsdp::optim
